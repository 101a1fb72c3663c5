"""A table of what a block needs, for each combination of its sizes and choices.

``trace.sweep(tp=[1, 2, 4, 8], batch=[4, 8])`` shows which meshes fit, and which of
them are fast. Each row is a recording of its own: no formula says what a rank of
another mesh holds. Read :func:`sweep_trace` for the block of a trace,
:func:`sweep_ranks` for a script of a world.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import product
from math import prod
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from meta_magic.cost.device_table import Device
from meta_magic.cost.memory_timeline import take_sample
from meta_magic.cost.step_times import USUAL_LINKS, estimate_step_time, find_links
from meta_magic.errors import TrialError, WorldError
from meta_magic.ranks.nursery import run_all
from meta_magic.ranks.recorded_ranks import (
    find_mismatches,
    read_script,
    record_script,
)
from meta_magic.trace.expectations import Limit, parse_budget
from meta_magic.trace.modules import count_elements
from meta_magic.trace.progress import show_line
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_line
from meta_magic.trace.world import Peers, SentCalls, read_ranks
from meta_magic.trials.blocks import Sizes, as_size, find_bound, set_sizes
from meta_magic.trials.fit import Recordings, find_sized_device
from meta_magic.trials.trial import ask_trials, read_size

if TYPE_CHECKING:
    import pandas as pd

Needs: TypeAlias = dict[str, float]
"""What a block needs on one rank, by the names of :data:`METRICS`."""

METRICS: Final = (
    "params",
    "flops",
    "peak_nbytes",
    "sent_nbytes",
    "seconds",
    "exposed",
    "ops",
)
"""Numbers in parameters (of all shards together), FLOPs, most bytes alive at once on
the device that needs most, bytes of all collectives, estimated seconds, those of them
in which nothing is computed, and operator calls."""


def measure_needs(
    trace: Trace, device: Device, links: str, metrics: Sequence[str] = METRICS
) -> Needs:
    """Return what the block of a trace needs on a device.

    ``peak_nbytes`` is always there: it decides whether the block fits.
    """
    time = None
    if {"seconds", "exposed"} & {*metrics}:
        time = estimate_step_time(trace, device, links)
    count: dict[str, Callable[[], float]] = {
        "params": lambda: count_elements(trace.modules, "parameter"),
        "flops": lambda: trace.flops,
        "peak_nbytes": lambda: take_sample(trace).peak_nbytes,
        "sent_nbytes": lambda: sum(sent.nbytes for sent in trace.sent),
        "seconds": lambda: time.seconds if time else 0.0,
        "exposed": lambda: time.exposed if time else 0.0,
        "ops": lambda: trace.program.n_calls,
    }
    return {name: count[name]() for name in {*metrics, "peak_nbytes"}}


Row: TypeAlias = tuple[Sizes, tuple[str, ...], Needs | Exception]
"""A combination of sizes, the choices, and what the block needs or why it fails."""


def make_table(
    rows: Sequence[Row], device: Device, metrics: Sequence[str], **more: Sequence[Any]
) -> "pd.DataFrame":
    """Return the table of a sweep."""
    import pandas as pd  # noqa: PLC0415  takes a second

    has_choices = any(choices for _, choices, _ in rows)
    listed = []
    for sizes, choices, found in rows:
        chosen = {"choices": ", ".join(choices)} if has_choices else {}
        is_error = isinstance(found, Exception)
        needs: Needs = {} if isinstance(found, Exception) else found
        row: dict[str, object] = {name: needs.get(name) for name in metrics}
        row["fits"] = not is_error and needs["peak_nbytes"] <= device.nbytes
        row["error"] = str(found).partition("\n")[0] if is_error else None
        listed.append({**sizes, **chosen, **row})
    table = pd.DataFrame(listed).assign(**more)
    table.attrs = {"names": [*rows[0][0]] if rows else [], "device": device.name}
    return table


MAX_ROWS: Final = 10_000

FAR: Final = 0.1
"""The part of a target by which a design may miss it without a word."""


def list_combinations(vary: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return each combination of the values of names."""
    check_values(vary)
    n = prod(map(len, vary.values()))
    if n > MAX_ROWS:
        raise TrialError(f"{n:,} combinations are too many: at most {MAX_ROWS:,}")
    return [dict(zip(vary, values, strict=True)) for values in product(*vary.values())]


def check_values(vary: Mapping[str, Sequence[Any]]) -> None:
    """Check the values of names, and those of arguments, which may be texts, too."""
    if not vary:
        raise TrialError("a sweep needs a name and its values, as in batch=[1, 2, 4]")
    for name, values in vary.items():
        is_argument = name.startswith("-") and not isinstance(values, str)
        if is_argument and len(values) and all(type(v) in (int, str) for v in values):
            continue
        if not len(values) or not all(as_size(value) for value in values):
            raise TrialError(f"{name}={values!r}: a sweep needs positive integers")


def check_metrics(metrics: Sequence[str]) -> tuple[str, ...]:
    """Return the names of metrics."""
    unknown = [name for name in metrics if name not in METRICS]
    if unknown:
        known = ", ".join(METRICS)
        raise TrialError(f"{unknown[0]!r} is no metric of a sweep; these are: {known}")
    return tuple(metrics)


class Runner:
    """Records a trace's block at sizes, and says how far it is."""

    def __init__(
        self,
        trace: Trace,
        names: Sequence[str],
        device: Device,
        links: str,
        metrics: Sequence[str],
    ) -> None:
        find_links(links)
        self._runs = Recordings(trace).find_trace(*names)
        for name in names:
            read_size(self._runs, name)
        self._question = lambda again, _: measure_needs(again, device, links, metrics)
        self._is_stopped = False

    def measure(self, sizes: Sequence[Sizes], choices: tuple[str, ...]) -> list[Row]:
        """Return a row for each combination of sizes; none after an interrupt."""
        rows: list[Row] = []
        if self._is_stopped:
            return rows
        started, cores = monotonic(), os.cpu_count() or 1
        try:
            for at in range(0, len(sizes), AT_A_TIME):
                some = sizes[at : at + AT_A_TIME]
                found = ask_trials(
                    self._runs,
                    self._question,
                    some,
                    choices,
                    at_once=cores,
                    per_child=min(PER_CHILD, -(-len(some) // cores)),
                )
                rows += [(s, choices, one) for s, one in zip(some, found, strict=True)]
                if monotonic() - started > PATIENCE:
                    left = (monotonic() - started) * (len(sizes) / len(rows) - 1)
                    show_line(f"{len(rows):,} of {len(sizes):,}, {left:.0f} s left")
        except KeyboardInterrupt:  # what was recorded is kept
            self._is_stopped = True
        finally:
            show_line("")
        return rows


AT_A_TIME: Final = 64
"""Recordings between two lines of progress."""

PER_CHILD: Final = 32
"""Recordings that one process makes at most: they share its operator cache."""

PATIENCE: Final = 1.0
"""Seconds after which progress is shown."""


def sweep_trace(
    trace: Trace,
    vary: Mapping[str, Sequence[int]],
    device: str,
    choices: Sequence[Sequence[str]] = ((),),
    links: str = USUAL_LINKS,
    metrics: Sequence[str] = METRICS,
    until: str = "",
) -> "pd.DataFrame":
    """Return a block's needs at all sizes and choices: ``Trace.sweep``."""
    sized, names = find_sized_device(device), check_metrics(metrics)
    if not until:
        combinations = list_combinations(vary)
        runner = Runner(trace, [*vary], sized, links, names)
        rows, stopped = list[Row](), TrialError("interrupted")
        for chosen in choices:
            measured = runner.measure(combinations, tuple(chosen))
            rows += measured
            left = combinations[len(measured) :]
            rows += [(sizes, tuple(chosen), stopped) for sizes in left]
        return make_table(rows, sized, names)
    limit, *more = parse_budget(until)
    if more:
        raise TrialError(f"until={until!r}: a sweep has one limit")
    check_metrics([limit.quantity])
    check_values(vary)
    runner = Runner(trace, [*vary], sized, links, (*names, limit.quantity))
    rows, marks = [], []
    *others, last = vary
    for one in choices:
        for fixed in (
            list_combinations({n: vary[n] for n in others}) if others else [{}]
        ):
            found = find_frontier(
                partial(runner.measure, choices=tuple(one)),
                [{**fixed, last: value} for value in sorted(vary[last])],
                partial(is_within, limit),
            )
            inside = [at for at, row in enumerate(found) if is_within(limit, row)]
            rows += found
            marks += [at == max(inside, default=-1) for at in range(len(found))]
    return make_table(rows, sized, names, frontier=marks)


def is_within(limit: Limit, row: Row) -> bool:
    """Whether what a row needs keeps to a limit."""
    needs = row[2]
    if isinstance(needs, Exception):
        return False
    value = needs[limit.quantity]
    return value < limit.most if limit.is_below else value <= limit.most


def find_frontier(
    measure: Callable[[Sequence[Sizes]], list[Row]],
    sizes: Sequence[Sizes],
    is_inside: Callable[[Row], bool],
) -> list[Row]:
    """Find the last size that keeps to a limit; return the recorded rows, by size.

    The sizes are in order, and need more and more. The search halves what is left; it
    takes a neighbour of a size with which the block fails.
    """
    known: dict[int, Row] = {}
    low, high = -1, len(sizes)  # the last one inside, and the first one outside
    while high - low > 1:
        middle = (low + high) // 2
        order = sorted(range(low + 1, high), key=lambda at: abs(at - middle))
        at = next((one for one in order if one not in known), None)
        if at is None:
            break
        found = measure([sizes[at]])
        if not found:  # interrupted
            break
        known[at] = found[0]
        if isinstance(known[at][2], Exception):
            continue
        if is_inside(known[at]):
            low = at
        else:
            high = at
    return [known[at] for at in sorted(known)]


def scale_trace(
    trace: Trace,
    name: str,
    values: Sequence[int],
    targets: Sequence[float],
    metric: str,
    given: Mapping[str, Sequence[int]],
    device: str,
) -> "pd.DataFrame":
    """Return values that bring a metric nearest to targets: ``Trace.scale``."""
    sized = find_sized_device(device)
    check_metrics([metric])
    for other, listed in given.items():
        if len(listed) != len(targets):
            raise TrialError(
                f"{other} has {len(listed)} values for {len(targets)} targets"
            )
    check_values({name: values, **given})
    runner = Runner(trace, [name, *given], sized, USUAL_LINKS, METRICS)
    nearest, missed = list[Row](), dict[int, str]()
    for at, target in enumerate(targets):
        fixed = {other: listed[at] for other, listed in given.items()}
        limit = Limit(quantity=metric, most=target)
        rows = find_frontier(
            partial(runner.measure, choices=()),
            [{**fixed, name: value} for value in sorted(values)],
            partial(is_within, limit),
        )
        ran = [row for row in rows if not isinstance(row[2], Exception)]
        if not ran:
            nearest += rows[-1:]
            continue
        best = min(ran, key=lambda row: abs(row[2][metric] - target))  # type: ignore[index]  # they ran
        nearest.append(best)
        size, off = best[0][name], best[2][metric] - target  # type: ignore[index]  # as above
        end = max(values) if off < 0 else min(values)
        if size == end and abs(off) > FAR * target:
            which = "largest" if off < 0 else "smallest"
            missed[at] = f"{name}={size} is the {which} value that was given"
    table = make_table(nearest, sized, METRICS, target=[*targets][: len(nearest)])
    for at, text in missed.items():
        table.loc[at, "error"] = text
    return table


# Scripts of a world


def sweep_ranks(
    script: str | os.PathLike[str],
    world: int,
    vary: Mapping[str, Sequence[int | str]],
    device: str,
    *,
    ranks: str | Sequence[int] = "differing",
    args: Sequence[str] = (),
    links: str = USUAL_LINKS,
    timeout: float = 300.0,
    **options: Any,
) -> "pd.DataFrame":
    r"""Record a script of a world at each combination of sizes; return what it needs.

    The numbers are those of the rank that needs most. A combination that hangs, or
    whose script raises, is a row with the reason.

    Args:
        script: Path of a Python script, as torchrun would run it.
        world: How many ranks there are.
        vary: By name, the values to try. A name that begins with ``-`` is an argument
            of the script, as in ``{"--tp": [1, 2], "--dtype": ["bf16", "fp32"]}``;
            another one is a variable to which the script assigns, outside of functions.
        device: An accelerator, by its name in ``devices.toml``, such as ``h100-sxm``.
        ranks: Which ranks are recorded, as of :func:`record_ranks`.
        args: Arguments of the script that do not vary.
        links: How the accelerators are connected, by the name in ``links.toml``.
        timeout: Seconds that a rank may take.
        **options: Options of :class:`record`, such as ``per_node``.

    Raises:
        TrialError: The script has no such variable, or a value is no positive integer.
        WorldError: There is no such script.
        UnknownDeviceError: There is no such device, or no such links.

    Example:
        >>> from pathlib import Path
        >>> text = "import torch, torch.distributed as dist\n"
        >>> text += "dist.init_process_group('gloo')\nn = 4\n"
        >>> text += "x = torch.ones(n, 10**9); dist.all_reduce(x[:1])"
        >>> _ = Path("train.py").write_text(text)
        >>> table = sweep_ranks("train.py", 8, {"n": [4, 32]}, "h100-sxm", ranks=[0])
        >>> table["fits"].tolist()  # 80 GB, and 4 GB for each of n
        [True, False]
    """
    sized = find_sized_device(device)
    find_links(links)
    combinations, chosen = list_combinations(vary), read_ranks(ranks, world)
    path, block = read_script(script)
    names = [name for name in vary if not name.startswith("-")]
    for name in {*names} - find_bound(block):
        raise TrialError(
            f"{path.name} has no variable {name!r}; an argument begins with '-'"
        )
    givens = [
        {
            "script": str(path),
            "block": set_sizes(deepcopy(block), {name: sizes[name] for name in names}),
            "args": [*args, *list_arguments(sizes)],
            "options": {**options, "world": world},
            "device": sized,
            "links": links,
        }
        for sizes in combinations
    ]
    measured = run_all(
        measure_rank, givens, chosen, timeout, path.read_text("utf-8", errors="replace")
    )
    found = map(join_needs, measured)
    rows: list[Row] = [(s, (), one) for s, one in zip(combinations, found, strict=True)]
    return make_table(rows, sized, METRICS)


def list_arguments(sizes: Mapping[str, int]) -> Iterator[str]:
    """Yield the arguments of a script that vary, each followed by its value."""
    for name, value in sizes.items():
        if name.startswith("-"):
            yield from (name, str(value))


def measure_rank(
    rank: int, peers: Peers, given: dict[str, Any]
) -> tuple[Needs | str, SentCalls]:
    """Return what a script needs as one rank, or its error; and what it sends."""
    trace = record_script(rank, peers, given)
    if trace.error is None:
        return measure_needs(trace, given["device"], given["links"]), trace.sent
    where = format_line(trace.error_line)
    return f"rank {rank}, {where}{trace.error}", trace.sent


def join_needs(
    measured: Mapping[int, tuple[Needs | str, SentCalls]] | WorldError,
) -> Needs | Exception:
    """Return the most that any rank needs; an error if one raises, or they hang."""
    if isinstance(measured, WorldError):
        return measured
    found = [needs for needs, _ in measured.values()]
    errors = [needs for needs in found if isinstance(needs, str)]
    errors += map(str, find_mismatches({r: sent for r, (_, sent) in measured.items()}))
    if errors:
        return TrialError(errors[0])
    rows = [needs for needs in found if not isinstance(needs, str)]
    return {name: max(row[name] for row in rows) for name in rows[0]}
