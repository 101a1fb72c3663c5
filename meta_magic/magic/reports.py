"""Show a trace in a front end: the saved report, and the live one beside it.

Read :func:`build_outputs` first.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.getipython import get_ipython
from IPython.display import display

if TYPE_CHECKING:
    from meta_magic.designs.differences import Difference
    from meta_magic.ranks.recorded_ranks import Ranks
    from meta_magic.trace.trace import Trace
    from meta_magic.view.widgets import Report


class Outputs(NamedTuple):
    """The two outputs of a trace.

    Attributes:
        bundle: Mime bundle of the report that stays when the notebook is saved.
        live: The widget that replaces it while there is a kernel, or None.
    """

    bundle: dict[str, str]
    live: "Report | None" = None


SECONDS: Final = 1.0
"""Seconds for recording the designs that the sliders of a saved notebook show."""


def build_outputs(
    shell: Any, trace: "Trace", key: str, settings: Mapping[str, Any]
) -> Outputs:
    """Return the outputs of a trace, and close earlier reports of its cell.

    Args:
        settings: ``depth``, ``parameters``, ``height``; of a failed cell, also ``line``
            and ``why`` (see ``view/page.py``); with ``--diff`` also ``difference``, as
            ``Difference.describe`` gives it.
    """
    from meta_magic.view.html import build_bundle  # noqa: PLC0415  needs torch

    line = settings.get("line")
    text = line and f"{line} (run %meta to print it)"
    if not is_notebook(shell):
        if text:
            return Outputs({"text/plain": text})
        from meta_magic.view.sliders import offer_sliders  # noqa: PLC0415  as above

        bundle = build_bundle(trace, depth=settings["depth"])
        found = settings.get("difference")
        lines = [found["text"], *found["changes"]] if found else []
        lines.append(bundle["text/plain"])
        errors = [one["error"] for one in offer_sliders(trace) if one["error"]]
        lines += [f"note: a slider cannot be moved: {error}" for error in errors]
        bundle["text/plain"] = "\n".join(lines)
        return Outputs(bundle)
    from meta_magic.view.page import render_snapshot, store_sliders  # noqa: PLC0415
    from meta_magic.view.payload import pack  # noqa: PLC0415
    from meta_magic.view.widgets import close_reports, show_report  # noqa: PLC0415  takes 0.2 s to import

    close_reports(key)
    if trace.is_empty:
        return Outputs(build_bundle(trace, depth=settings["depth"]))
    packed, uid = pack(trace), f"mm-{uuid4().hex[:8]}"
    stored, designs = store_sliders(trace, packed, SECONDS)
    html = render_snapshot(trace, packed, uid, settings, stored)
    bundle = build_bundle(trace, html, settings["depth"])
    bundle["text/plain"] = text or bundle["text/plain"]
    live = show_report(
        trace, key, packed=packed, saved_id=uid, settings=settings, designs=designs
    )
    return Outputs(bundle, live)


def show(trace: "Trace", settings: Mapping[str, Any]) -> None:
    """Show a report in the notebook, or as text where there is none."""
    shell = get_ipython()
    if shell is None:
        print(trace.summary(settings["depth"]))  # noqa: T201  asked for
        return
    outputs = build_outputs(shell, trace, find_cell_id(shell) or uuid4().hex, settings)
    display(outputs.bundle, raw=True)
    if outputs.live is not None:
        display(outputs.live)


def show_difference(difference: "Difference") -> None:
    """Show the report of a design with its changes marked; as text elsewhere."""
    trace = difference.after
    if trace is None or not is_notebook(get_ipython()):
        print(difference)  # noqa: T201  asked for
        return
    show(trace, {"depth": None, "difference": difference.describe()})


def show_ranks(ranks: "Ranks") -> None:
    """Show recorded processes one above the other; as text outside of notebooks."""
    if not is_notebook(get_ipython()):
        print(ranks)  # noqa: T201  asked for
        return
    from meta_magic.view.rank_strips import render_ranks  # noqa: PLC0415

    bundle = {"text/plain": str(ranks), "text/html": render_ranks(ranks)}
    display(bundle, raw=True)


def show_charts(trace: "Trace", of: str, device: str) -> None:
    """Show a chart of a trace, outside of notebooks as a line of text."""
    from meta_magic.view.charts import memory_bundle, roofline_bundle  # noqa: PLC0415
    from meta_magic.view.treemap import treemap_bundle  # noqa: PLC0415  needs torch

    charts: Mapping[str, tuple[Callable[[Trace], dict[str, object] | None], str]] = {
        "parameters": (treemap_bundle, "no module of this trace has parameters"),
        "memory": (memory_bundle, "no tensor of this trace takes memory"),
        "roofline": (
            partial(roofline_bundle, device=device),
            "no operator of this trace computes anything",
        ),
    }
    if of not in charts:
        raise ValueError(f"there is no chart of {of!r}: choose {' or '.join(charts)}")
    build, otherwise = charts[of]
    bundle = build(trace)
    if bundle is None:
        print(otherwise)  # noqa: T201  asked for
    elif is_notebook(get_ipython()):
        display(bundle, raw=True)
    else:
        print(bundle["text/plain"])  # noqa: T201  asked for


def is_notebook(shell: Any) -> bool:
    """Whether the front end of a shell is a browser."""
    return hasattr(shell, "kernel")


def find_cell_id(shell: Any) -> str | None:
    """Return the front end's id of the running cell, if it sends one."""
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    cell_id: str | None = (parent or {}).get("metadata", {}).get("cellId")
    return cell_id


def silence_shell() -> None:
    """Show nothing from now on: a forked child must not write to the front end."""
    shell = get_ipython()
    if shell is None:
        return
    shell.display_pub = CapturingDisplayPublisher(shell=shell)
    shell.displayhook = DisplayHook(shell=shell)
    kernel: Any = getattr(shell, "kernel", None)
    if kernel:  # it would log that it sends nothing, and its log may be a file
        kernel.session.send = lambda *_, **__: None
