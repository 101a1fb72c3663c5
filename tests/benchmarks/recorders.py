"""The tools that a recording is compared with, and how each runs a cell."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._debug_mode import DebugMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import meta_magic as mm
from tests.benchmarks.models import Workload

PLAIN = "plain"


class Nothing:
    """What the do-nothing mode does; a mixin, so that torch does not import dynamo."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


class NothingMode(Nothing, TorchDispatchMode):
    """The least that any dispatch mode costs."""


class Counting:
    """What the counting mode does; a mixin for the same reason."""

    n_operators = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.n_operators += 1
        return func(*args, **(kwargs or {}))


class CountingMode(Counting, TorchDispatchMode):
    """Counts the operators that torch runs."""


on_meta = partial(torch.device, "meta")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One column of the table.

    Attributes:
        name: How the column is called, also on the command line.
        run: Runs a workload once under the tool.
        takes_model: Whether the tool calls the model itself, so that it can be
            compared on forwards alone.
        place: Makes what models are built under for it.
    """

    name: str
    run: Callable[[Workload], object]
    takes_model: bool = False
    place: Callable[[], AbstractContextManager[Any]] = on_meta


def run_plain(workload: Workload) -> None:
    """Run without any tool."""
    with torch.device("meta"):
        workload.run()


def run_dispatch(workload: Workload) -> None:
    """Run under a dispatch mode that does nothing."""
    with torch.device("meta"), NothingMode():
        workload.run()


def run_record(workload: Workload) -> None:
    """Record, with the signatures that earlier recordings left."""
    with mm.record():
        workload.run()


def forget_signatures() -> None:
    """Begin anew, as the first cell of a session, which knows no signature yet."""
    import_module("meta_magic.session.recording").shared_cache_by_device.clear()


def run_record_cold(workload: Workload) -> None:
    """Record as the first cell of a session does."""
    forget_signatures()
    with mm.record():
        workload.run()


def run_record_uncached(workload: Workload) -> None:
    """Record, and run every kernel."""
    with mm.record(cache=False):
        workload.run()


def run_debug_mode(workload: Workload) -> None:
    """Run under torch's own recorder, with its defaults: operators alone."""
    with torch.device("meta"), DebugMode():
        workload.run()


def run_flop_counter(workload: Workload) -> None:
    """Run under torch's FLOP counter."""
    with torch.device("meta"), FlopCounterMode(display=False):
        workload.run()


def run_torchinfo(workload: Workload) -> None:
    """Let torchinfo call the model and make its summary, and print nothing."""
    import torchinfo

    with torch.device("meta"):
        torchinfo.summary(
            workload.model, input_data=workload.inputs, device="meta", verbose=0
        )


def run_torchview(workload: Workload) -> None:
    """Let torchview call the model and write its graph as DOT, and lay nothing out.

    With every module open: at its default depth it fails for language models.
    """
    import torchview

    with torch.device("meta"):
        torchview.draw_graph(
            workload.model,
            input_data=workload.inputs,
            device="meta",
            depth=float("inf"),
        )


def run_torchlens(workload: Workload) -> None:
    """Let torchlens call the model and log each operation."""
    import torchlens

    with torch.device("meta"):
        torchlens.trace(workload.model, workload.inputs)


@cache
def fake_mode() -> FakeTensorMode:
    """Return the mode of all fake tensors here."""
    return FakeTensorMode()


def run_fake(workload: Workload) -> None:
    """Run on fake tensors, with what their mode keeps of earlier operators."""
    with fake_mode():
        workload.run()


def run_fake_cold(workload: Workload) -> None:
    """Run on fake tensors as if no operator had been met before."""
    FakeTensorMode.cache_clear()
    run_fake(workload)


TOOLS = (
    Tool(name=PLAIN, run=run_plain),
    Tool(name="nothing", run=run_dispatch),
    Tool(name="record", run=run_record),
    Tool(name="record-cold", run=run_record_cold),
    Tool(name="record-uncached", run=run_record_uncached),
    Tool(name="debugmode", run=run_debug_mode),
    Tool(name="flopcounter", run=run_flop_counter),
    Tool(name="faketensor", run=run_fake, place=fake_mode),
    Tool(name="faketensor-cold", run=run_fake_cold, place=fake_mode),
    Tool(name="torchinfo", run=run_torchinfo, takes_model=True),
    Tool(name="torchview", run=run_torchview, takes_model=True),
    Tool(name="torchlens", run=run_torchlens, takes_model=True),
)
