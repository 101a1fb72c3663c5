"""A table of what a block needs, for each combination of its sizes and choices.

``trace.sweep({"tp": [1, 2, 4, 8], "batch": [4, 8]}, "h100-sxm")`` shows which meshes
fit, and which of them are fast. Each row is a recording of its own: no formula says
what a rank of another mesh holds. Read :func:`sweep_trace` for the block of a trace,
:func:`sweep_ranks` for a script of a world.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, Final

from meta_magic.cost.device_table import Device
from meta_magic.cost.memory_samples import take_sample
from meta_magic.cost.step_times import USUAL_LINKS, estimate_step_time, find_links
from meta_magic.errors import TrialError, WorldError
from meta_magic.ranks.nursery import run_all
from meta_magic.ranks.recorded_ranks import (
    find_mismatches,
    read_ranks,
    read_script,
    record_script,
)
from meta_magic.trace.sent import SentCalls
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_bytes
from meta_magic.trace.world import Peers
from meta_magic.trials.blocks import as_size, find_bound, set_sizes
from meta_magic.trials.fit import find_sized_device
from meta_magic.trials.recordings import Recordings
from meta_magic.trials.trial import ask_trials, read_size

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a block needs on one rank.

    Attributes:
        n_parameters: Numbers in its modules' parameters, all shards together.
        flops: FLOPs of all calls.
        peak_nbytes: Most bytes alive at once, on the device that needs most.
        sent_nbytes: Bytes of all collectives.
        seconds: Estimated seconds; see :class:`~meta_magic.cost.step_times.StepTime`.
        exposed: Seconds of these in which nothing is computed.
    """

    n_parameters: int
    flops: int
    peak_nbytes: int
    sent_nbytes: int
    seconds: float
    exposed: float


def measure_needs(trace: Trace, device: Device, links: str) -> Needs:
    """Return what the block of a trace needs on a device."""
    time = estimate_step_time(trace, device, links)
    return Needs(
        n_parameters=sum(root.n_parameters for root in trace.modules),
        flops=trace.flops,
        peak_nbytes=take_sample(trace).peak_nbytes,
        sent_nbytes=sum(sent.nbytes for sent in trace.sent),
        seconds=time.seconds,
        exposed=time.exposed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One combination of sizes and choices.

    Attributes:
        sizes: The value of each name.
        choices: The choices.
        needs: What the block needs; of several ranks, the most of each. None if it
            does not run.
        fits: Whether that fits the device.
        error: Why the block does not run; None if it does.
    """

    sizes: Mapping[str, int]
    choices: tuple[str, ...] = ()
    needs: Needs | None = None
    fits: bool = False
    error: str | None = None


class Sweep(tuple[SweepRow, ...]):
    """The rows of a sweep, in the order in which the values were given."""

    __slots__ = ()

    @property
    def fitting(self) -> "Sweep":
        """The rows that fit the device, the fastest first."""
        fitting = [(row.needs.seconds, row) for row in self if row.needs and row.fits]
        return Sweep(row for _, row in sorted(fitting, key=lambda pair: pair[0]))

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row for each combination.

        Columns: one for each name; ``choices``, as text; the fields of :class:`Needs`;
        ``fits``; and ``error``.
        """
        import pandas as pd  # noqa: PLC0415  takes a second

        nothing = dict.fromkeys(field.name for field in fields(Needs))
        return pd.DataFrame(
            {
                **row.sizes,
                "choices": ", ".join(row.choices),
                **(nothing if row.needs is None else asdict(row.needs)),
                "fits": row.fits,
                "error": row.error,
            }
            for row in self
        )

    def __str__(self) -> str:
        names = [*self[0].sizes] if self else []
        table = [(*names, *HEAD), *map(list_cells, self)]
        # A column without entries is left out.
        columns = [c for c in zip(*table, strict=True) if any(c[1:])]
        widths = [max(map(len, column)) for column in columns]
        return "\n".join(
            "  ".join(map(str.ljust, cells, widths)).rstrip()
            for cells in zip(*columns, strict=True)
        )


HEAD: Final = ("choices", "peak", "fits", "time", "exposed", "sent", "error")


def list_cells(row: SweepRow) -> tuple[str, ...]:
    """Return a row as the texts of its cells."""
    needs, cells = row.needs, [""] * 5
    if needs is not None:
        times = (f"{seconds:.3g} s" for seconds in (needs.seconds, needs.exposed))
        fits = "yes" if row.fits else "no"
        sent = format_bytes(needs.sent_nbytes)
        cells = [format_bytes(needs.peak_nbytes), fits, *times, sent]
    choices = ", ".join(row.choices)
    error = (row.error or "").partition("\n")[0]
    return (*map(str, row.sizes.values()), choices, *cells, error)


MAX_ROWS: Final = 10_000


def list_combinations(vary: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Return each combination of the values of names.

    Raises:
        TrialError: A value is no positive integer, or there are too many combinations.
    """
    for name, values in vary.items():
        if not all(as_size(value) for value in values):
            raise TrialError(f"{name}={values!r}: a sweep needs positive integers")
    n = prod(map(len, vary.values()))
    if n > MAX_ROWS:
        raise TrialError(f"{n:,} combinations are too many: at most {MAX_ROWS:,}")
    return [dict(zip(vary, values, strict=True)) for values in product(*vary.values())]


def sweep_trace(
    trace: Trace,
    vary: Mapping[str, Sequence[int]],
    device: str,
    choices: Sequence[Sequence[str]] = ((),),
    links: str = USUAL_LINKS,
) -> Sweep:
    """Return what a trace's block needs at each combination of sizes and choices.

    See :meth:`Trace.sweep`.
    """
    sized, rows = find_sized_device(device), list[SweepRow]()
    find_links(links)
    combinations = list_combinations(vary)
    runs = Recordings(trace).find_trace(*vary)
    for name in vary:
        read_size(runs, name)
    for chosen in choices:
        answers = ask_trials(
            runs,
            lambda again, _: measure_needs(again, sized, links),
            combinations,
            tuple(chosen),
        )
        rows += map(partial(make_row, sized, tuple(chosen)), combinations, answers)
    return Sweep(rows)


def make_row(
    device: Device,
    choices: tuple[str, ...],
    sizes: Mapping[str, int],
    answer: Needs | Exception,
) -> SweepRow:
    """Return a row by what was measured, or by the reason why nothing was."""
    if isinstance(answer, Exception):
        return SweepRow(sizes=sizes, choices=choices, error=str(answer))
    fits = answer.peak_nbytes <= device.nbytes
    return SweepRow(sizes=sizes, choices=choices, needs=answer, fits=fits)


# Scripts of a world


def sweep_ranks(
    script: str | os.PathLike[str],
    world: int,
    vary: Mapping[str, Sequence[int]],
    device: str,
    *,
    ranks: str | Sequence[int] = "differing",
    args: Sequence[str] = (),
    links: str = USUAL_LINKS,
    timeout: float = 300.0,
    **options: Any,
) -> Sweep:
    r"""Record a script of a world at each combination of sizes; return what it needs.

    The numbers are those of the rank that needs most. A combination that hangs, or
    whose script raises, is a row with the reason.

    Args:
        script: Path of a Python script, as torchrun would run it.
        world: How many ranks there are.
        vary: By name, the values to try. A name that begins with ``-`` is an argument
            of the script, as in ``{"--tp": [1, 2, 4]}``; another one is a variable to
            which the script assigns, outside of functions.
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
        >>> sweep = sweep_ranks("train.py", 8, {"n": [4, 32]}, "h100-sxm", ranks=[0])
        >>> [row.fits for row in sweep]  # 80 GB, and 4 GB for each of n
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
    measured = run_all(measure_rank, givens, chosen, timeout)
    answers = map(join_needs, measured)
    return Sweep(map(partial(make_row, sized, ()), combinations, answers))


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
    where = f"line {trace.error_line}: " if trace.error_line else ""
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
    rows = [asdict(needs) for needs in found if isinstance(needs, Needs)]
    return Needs(**{name: max(row[name] for row in rows) for name in rows[0]})
