"""Decide whether a value is computed: by the memory, operations and seconds it takes.

``loss.item()`` in a training loop is computed as long as the machine can do it in the
time that a reader waits; ``torch.ones(2**40).sum().item()`` is refused at once.
:func:`measure_rates` times a few products, sums and random numbers once in a process;
by these rates :func:`estimate_seconds` estimates how long a step of a replay takes.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from math import ceil, log10, prod
from pathlib import Path
from typing import Final, NamedTuple

import psutil
import torch

from meta_magic.errors import MetaMagicError, MissingValueError, ValueLimitError
from meta_magic.replaying.execution import Execution, Finished
from meta_magic.replaying.steps import Step, StepKind
from meta_magic.replaying.streams import count_words
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.trace.formulas.call_costs import count_flops
from meta_magic.trace.options import N_VALUES, ValueLimits
from meta_magic.trace.program_facts import Evaluation
from meta_magic.trace.progress import show_line
from meta_magic.trace.signature import CPU, Signature
from meta_magic.trace.units import format_bytes, format_flops

GROUPS: Final = Path("/sys/fs/cgroup")
CONTROL_GROUPS: Final = (
    (GROUPS, "memory.max", "memory.current"),
    (GROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""Files with the memory limit and use of a container: cgroups version 2, then 1."""


def read_device(device: str | torch.device, kind: type[MetaMagicError]) -> torch.device:
    """Return a device of this machine, or raise ``error``."""
    there = list_devices()
    listed = f"there {'is' if len(there) == 1 else 'are'} {', '.join(there)}"
    try:
        read = torch.device(device)
    except (RuntimeError, TypeError):
        raise kind(f"{device!r} names no device: {listed}") from None
    if str(read) == "cuda" and torch.cuda.is_available():
        read = torch.device("cuda", torch.cuda.current_device())
    if read.type == "cpu":
        return torch.device("cpu")
    if str(read) not in there:
        raise kind(f"there is no device {str(device)!r} to put data on: {listed}")
    return read


def list_devices() -> list[str]:
    """Return the names of the devices of this machine."""
    return ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]


def free_nbytes(device: torch.device, kept_nbytes: int = 0, share: int = 1) -> int:
    """Return the bytes that this process may still take on a device.

    Of the machine's memory, with kept contents, it may take one byte in ``share``; of
    what its own limits leave (``ulimit -v``), all.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = min([int(psutil.virtual_memory().available), *_free_in_container()])
    return min([(free + kept_nbytes) // share, *_free_in_process()])


def _free_in_process() -> list[int]:
    """Return the bytes that the limits of this process leave; only Linux has them."""
    if not hasattr(psutil, "RLIMIT_AS"):
        return []
    process = psutil.Process()
    used = process.memory_info()
    limits = ((psutil.RLIMIT_AS, used.vms), (psutil.RLIMIT_DATA, used.data))
    left = [(process.rlimit(kind)[0], n_used) for kind, n_used in limits]
    return [max(0, limit - n) for limit, n in left if limit != psutil.RLIM_INFINITY]


def _free_in_container() -> list[int]:
    """Return the free bytes of a container, which kills beyond; [] without limits."""
    for folder, limit, used in CONTROL_GROUPS:
        try:
            n_limit, n_used = (int((folder / f).read_text()) for f in (limit, used))
            lines = (folder / "memory.stat").read_text().splitlines()
            stat = dict(map(str.split, lines))
        except (OSError, ValueError):  # no such file, or the limit is "max"
            continue
        return [n_limit - n_used + int(stat.get("inactive_file", 0))]
    return []


RECURRENT: Final = "aten.mkldnn_rnn_layer"
SMALL: Final = 2**25
"""FLOPs of a product below which it is small: a small one is slower per FLOP."""

N_ROUNDS: Final = 4
N_DRAWN: Final = 2**20

STEP: Final = 5  # overhead of a step, in times of a call of torch on one element


class Rates(NamedTuple):
    """The speed of a device, per second.

    Attributes:
        large: FLOPs in large products of matrices.
        small: FLOPs in small products.
        steps: Steps on tensors of one element.
    """

    large: float
    small: float
    nbytes: float
    drawn: float
    steps: float


@cache
def measure_rates(device: torch.device) -> Rates:
    """Return the speed of a device; it is measured once, in about 0.1 s."""
    try:
        return measure_with(2**23, device)
    except RuntimeError:  # so much memory is not free
        return measure_with(2**16, device)


def measure_with(numel: int, device: torch.device) -> Rates:
    """Return the speed of a device, by products and by sums of ``numel`` numbers."""
    with RealTorch(), torch.no_grad():
        large, small, weight, many, one = (
            torch.ones(shape, dtype=torch.float32, device=device)
            for shape in ((512, 512), (32, 256), (256, 512), (numel,), (1,))
        )
        generator = torch.Generator(device)
        seconds = [
            time_calls(call, n, device)
            for call, n in (
                (lambda: large @ large, 2),
                (lambda: small @ weight, 25),
                (lambda: many + many, 1),
                (lambda: many[:N_DRAWN].normal_(generator=generator), 1),
                (lambda: one + one, 500),
            )
        ]
    n_drawn = min(numel, N_DRAWN)
    amounts = (2 * 512**3, 2 * 32 * 256 * 512, 3 * many.nbytes, n_drawn, 1 / STEP)
    return Rates(*(n / taken for n, taken in zip(amounts, seconds, strict=True)))


def time_calls(call: Callable[[], object], n: int, device: torch.device) -> float:
    """Return the seconds of a call: the best of a few rounds of ``n`` calls."""
    call()
    _synchronize(device)
    rounds = []
    for _ in range(N_ROUNDS):
        started = time.perf_counter()
        for _ in range(n):
            call()
        _synchronize(device)
        rounds.append((time.perf_counter() - started) / n)
    return min(rounds)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def estimate_seconds(step: Step, rates: Rates, device: torch.device) -> float:
    """Return about how many seconds a step takes on a device."""
    seconds = 1 / rates.steps
    call, signature = step.call, step.call.signature
    if step.kind == StepKind.ALLOCATE or signature.is_view:
        return seconds
    if step.kind == StepKind.DRAW and count_words(call, device) is not None:
        return seconds  # its words are skipped
    if step.draw is not None:
        return seconds + prod(call.drawn.shape) / rates.drawn
    flops, n_products = count_products(signature)
    rate = rates.large if flops >= SMALL * n_products else rates.small
    tensors = (*signature.inputs, *signature.outputs)
    nbytes = sum(prod(g.shape) * g.dtype.itemsize for g in tensors)
    return seconds + flops / rate + nbytes / rates.nbytes


@lru_cache(maxsize=2**10)
def count_products(signature: Signature) -> tuple[int, int]:
    """Return the FLOPs of a call, and the count of its matrix products."""
    flops, n = count_flops(signature) or 0, 1
    if signature.op == "aten.bmm.default":
        n = signature.outputs[0].shape[0]
    if signature.op.startswith(RECURRENT):
        n_passes = 2 if "backward" in signature.op else 1
        n = signature.inputs[0].shape[0] * n_passes  # one after the other
    return flops, max(n, 1)


FIRST_AFTER: Final = 0.5
EVERY: Final = 0.25

EARLY: Final = 0.1
"""The part of the work after which its own speed replaces the estimate."""


class ValueProgress:
    """The line that shows the progress of one replay, if it takes long."""

    def __init__(
        self, describe: Callable[[], str], estimate: Callable[[], Sequence[float]]
    ) -> None:
        self._describe = describe
        self._estimate = estimate
        self._seconds: Sequence[float] = ()
        self._started = time.perf_counter()
        self._next = self._started + FIRST_AFTER
        self._n_done = 0

    def note_step(self) -> None:
        """Count one more step; show the line if it is due."""
        self._n_done += 1
        now = time.perf_counter()
        if now >= self._next:
            show_line(self._write(now - self._started))
            self._next = time.perf_counter() + EVERY

    def finish(self) -> None:
        """Remove the line, if it is shown."""
        if self._seconds:
            show_line("")

    def _write(self, elapsed: float) -> str:
        if not self._seconds:
            self._seconds = self._estimate()
        about, done = sum(self._seconds), sum(self._seconds[: self._n_done])
        if done > EARLY * about:
            about = elapsed * about / done
        return (
            f"{self._describe()}: {elapsed:.1f} s of about {max(about, elapsed):.0f} s "
            "(to go on without: --assume values=nan)"
        )


SHARE_OF_FREE: Final = 4  # a value takes at most a quarter of the free memory

FEW_BYTES: Final = 2**24
FEW_FLOPS: Final = 10**9
FEW_STEPS: Final = 20_000
"""Up to here a value takes less than a second: it is computed without measuring how
much memory is free and how fast the machine is."""

A_VALUE: Final = "a value"
FREE: Final = ", by the memory that is free"


class Excess(NamedTuple):
    """A limit that a value exceeds."""

    limit: str
    wanted: float
    text: str


class ValueBudget:
    """The limits of values of one recording, and the seconds that they took so far.

    As a context manager it counts the processor time of its block in this thread, so
    that what is refused does not depend on how busy the machine is. A value is refused
    as too expensive in five ways:

    * :meth:`check`: its replay would take more bytes, FLOPs or seconds than ``limits``;
    * :meth:`refuse_more`: all values of a recording took six times the seconds of one;
    * ``Planner._include``: its calls alone have more than :meth:`max_flops`;
    * ``ForwardReplay._has_room``: the large calls of a loop exceed :meth:`allows`;
    * ``ValuesOnDemand.evaluate``: as large a one was refused at the same line.
    """

    def __init__(
        self, limits: ValueLimits, describe: Callable[[], str] = lambda: A_VALUE
    ) -> None:
        self.limits = limits
        self._describe = describe
        self._spent = self._started = 0.0

    def __enter__(self) -> None:
        self._started = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self._spent += time.thread_time() - self._started

    @property
    def is_spent(self) -> bool:
        """Whether all seconds that the values of a recording may take are spent."""
        return self._spent > N_VALUES * self.limits.seconds

    def refuse_more(self) -> None:
        """Refuse any further value once all allowed seconds are spent."""
        if self.is_spent:
            most = N_VALUES * self.limits.seconds
            text = (
                f"values of this block took {self._spent:.0f} s "
                f"({most:g} s are allowed)"
            )
            wanted = {"seconds": round_up(2 * self._spent / N_VALUES)}
            raise ValueLimitError(text, wanted)

    def watch(self, estimate: Callable[[], Sequence[float]]) -> ValueProgress:
        """Return the progress of the value that is computed now."""
        return ValueProgress(self._describe, estimate)

    def max_flops(self) -> int:
        """Return the operations above which a value is surely refused."""
        if self.limits.flops is not None:
            return self.limits.flops
        return int(self.limits.seconds * measure_rates(CPU).large)

    def allows_kept(self, nbytes: int) -> bool:
        """Whether contents of so many bytes may stay in memory for later values."""
        return nbytes <= self._max_nbytes(nbytes, nbytes)

    def allows(self, nbytes: int, flops: int) -> bool:
        """Whether a value may take so many bytes and operations."""
        return self.allows_kept(nbytes) and flops <= self.max_flops()

    def check(self, replay: Execution, unused_nbytes: int) -> Evaluation:
        """Return the cost of a replay, while other values keep ``unused_nbytes``."""
        steps = [step for step in replay.steps if step.kind != StepKind.ALLOCATE]
        cost = Evaluation(
            call=len(replay.plan.recorded),
            n_calls=len(steps),
            nbytes=replay.peak_nbytes({}),
            flops=sum(step.call.usage.work for step in steps),
        )
        kept_nbytes = sum(part.kept_nbytes for part in replay.parts)
        excesses = [
            *self._find_nbytes(cost.nbytes + unused_nbytes, kept_nbytes),
            *self._find_flops(cost.flops),
            *self._find_seconds(replay, cost),
        ]
        if excesses:
            text = " and ".join(excess.text for excess in excesses)
            wanted = {e.limit: round_up(e.wanted) for e in excesses}
            raise ValueLimitError(f"it takes {text}", wanted)
        refuse_unknown(replay)  # after the limits: masks of bytes take memory, too
        return cost

    def run(self, replay: Execution, finished: Finished) -> None:
        """Run a replay and show its progress; under :func:`RealTorch`."""
        progress = self.watch(lambda: estimate_all(replay.steps))
        try:
            for _ in replay.run(finished):
                progress.note_step()
        finally:
            progress.finish()

    def _max_nbytes(self, nbytes: int, kept_nbytes: int) -> int:
        """Return the allowed bytes; few bytes are allowed without measuring."""
        if self.limits.nbytes is not None:
            return self.limits.nbytes
        if nbytes <= FEW_BYTES:
            return nbytes
        return free_nbytes(CPU, kept_nbytes, SHARE_OF_FREE)

    def _find_nbytes(self, nbytes: int, kept_nbytes: int) -> Iterator[Excess]:
        most = self._max_nbytes(nbytes, kept_nbytes)
        if nbytes > most:
            text = compare(nbytes, most, format_bytes)
            of = "" if self.limits.nbytes is not None else FREE
            yield Excess("nbytes", nbytes, f"{text}{of})")

    def _find_flops(self, flops: int) -> Iterator[Excess]:
        most = self.limits.flops
        if most is not None and flops > most:
            yield Excess("flops", flops, f"{compare(flops, most, format_flops)})")

    def _find_seconds(self, replay: Execution, cost: Evaluation) -> Iterator[Excess]:
        seconds, most = 0.0, self.limits.seconds
        if cost.flops > FEW_FLOPS or cost.n_calls > FEW_STEPS:
            seconds = sum(estimate_all(replay.steps))
        about = f"about {seconds:.0f} s"
        total = self._spent + seconds
        if seconds > most:
            yield Excess("seconds", seconds, f"{about} ({most:g} s are allowed)")
        elif total > N_VALUES * most:
            text = (
                f"{about} after {self._spent:.0f} s for earlier values of this block "
                f"({N_VALUES * most:g} s are allowed for all)"
            )
            yield Excess("seconds", 2 * total / N_VALUES, text)


def refuse_unknown(replay: Execution) -> None:
    """Refuse values of uninitialized memory, or of memory written without torch."""
    program = replay.plan.recorded.program
    if not replay.plan.storages.isdisjoint(program.written_unseen):
        raise MissingValueError(
            "a real tensor that it comes from was written without torch, as by numpy"
        )
    if replay.reads_raw() and not replay.follow_partial_writes():
        # Kernels trust sizes and indices: garbage there would corrupt memory.
        error = MissingValueError(
            "nothing was written to it, or to some of what it comes from, since "
            f"{replay.describe_raw()}"
        )
        error.allocated = replay.find_allocated()
        try:
            raise error
        finally:
            del error  # this frame would keep itself, and the tensors of its callers


def estimate_all(steps: Sequence[Step]) -> list[float]:
    """Return about how many seconds each step takes."""
    rates = measure_rates(CPU)
    return [estimate_seconds(step, rates, CPU) for step in steps]


def compare(number: int, limit: int, write: Callable[[int], str]) -> str:
    """Return a number and its limit as text that differs; the bracket stays open."""
    texts = write(number), write(limit)
    if texts[0] == texts[1]:
        unit = write(10).partition(" ")[2]
        texts = f"{number:,} {unit}", f"{limit:,} {unit}"
    return f"{texts[0]} ({texts[1]} are allowed"


def round_up(number: float) -> int:
    """Round a number up to two significant digits."""
    unit = int(10 ** max(int(log10(max(number, 1))) - 1, 0))
    return ceil(number / unit) * unit
