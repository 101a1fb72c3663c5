"""The *Fit* panel of the report: how memory grows with a size, and what fits a GPU.

A thread records the cell again at other sizes, each time in a forked child, while the
kernel goes on. Read :meth:`FitsOf.receive` first.

A forked child has only the thread that forked it. A lock that another thread held at
that moment is never released in the child. CPython resets its own locks; for any other
lock the child is killed after :data:`meta_magic.trials.trial.SECONDS`, and the answer
says so.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from meta_magic.cost.device_table import find_device
from meta_magic.errors import MetaMagicError, TrialError
from meta_magic.session.collector import RARE_COLLECTION
from meta_magic.trace.trace import Trace
from meta_magic.trials.fit import LIMIT, Recordings, find_fitting
from meta_magic.trials.trial_choices import CHOICES
from meta_magic.view.answers import FORGOTTEN, make_reference
from meta_magic.view.wire import Table

ALIGNED: Final = 64
"""Kernels round sizes up to no larger multiple than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How the bytes at the peak grow with one size, the others unchanged.

    Attributes:
        name: The block's name for the size.
        current: Its value there; 0 if nothing could be recorded.
        nbytes: The memory in which the largest size should fit.
        largest: The largest size that fits, as recorded; 0 if none does.
        recorded: (size, bytes at the peak) of the recordings that were made.
        sizes: Sizes to interpolate from; () where programs differ by size.
        step: Interpolated sizes are multiples of it.
        highest: The bytes live at ``sizes``, for each call that is the peak at one.
        reason: Why the growth is not known; None if it is.
    """

    name: str
    choices: tuple[str, ...]
    nbytes: int
    current: int = 0
    largest: int = 0
    recorded: tuple[tuple[int, int], ...] = ()
    sizes: tuple[int, ...] = ()
    step: int = 1
    highest: tuple[tuple[int, ...], ...] = ()
    reason: str | None = None


def find_growth(
    recordings: Recordings, name: str, nbytes: int, choices: tuple[str, ...] = ()
) -> Growth:
    """Return how the peak of a block grows with a size.

    All sizes are tried, then multiples of the power of two in the current size: kernels
    that round sizes up leave these as they are.
    """
    try:
        current = recordings.read_size(name)
        steps = sorted({1, min(current & -current, ALIGNED)})
        tried = [range(n, LIMIT + 1, n) for n in steps]
        found = find_fitting(recordings, name, nbytes, tried, choices)
    except TrialError as error:
        return Growth(name=name, choices=choices, nbytes=nbytes, reason=str(error))
    known = found.interpolation
    calls = () if known is None else known.list_highest(found.least)
    live = () if known is None else known.live
    return Growth(
        name=name,
        choices=choices,
        nbytes=nbytes,
        current=found.current,
        largest=found.largest,
        recorded=found.recorded,
        sizes=() if known is None else known.sizes,
        step=found.least,
        highest=tuple(tuple(int(at[call]) for at in live) for call in calls),
    )


def find_stretches(
    recordings: Recordings, growth: Growth
) -> tuple[tuple[int, ...], ...]:
    """Return a row for each stretch of the recorded program: its bytes at some sizes.

    They are in the order of :class:`Sample`; () where the program differs by size.
    """
    samples = [recordings.take(sizes={growth.name: size}) for size in growth.sizes]
    programs = {sample.program for sample in (*samples, recordings.take())}
    if len(programs) > 1:
        return ()
    return tuple(zip(*(sample.stretches for sample in samples), strict=True))


Update: TypeAlias = Callable[..., object]

PAUSE: Final = 0.05
"""Seconds between two checks whether another recording has ended."""

NOTHING: Final = (
    "the cell reads no name of a positive integer: write batch = 8 "
    "for a size to see how the memory grows with it"
)


NO_SIZES: Final[Mapping[str, int]] = MappingProxyType({})


class StoppedError(Exception):
    """Raised in the thread that records, when the user stops it."""


def offer_fits(trace: Trace, at: Mapping[str, int] = NO_SIZES) -> dict[str, Any]:
    """Return what the Fit panel offers for a recording with the sizes ``at``.

    ``sizes``: names and their values; ``choices``: names; ``reason``: why there is
    nothing to offer, or "".
    """
    sizes: dict[str, int] = {}
    try:
        sizes = Recordings(trace, at=at).list_sizes()
        reason = "" if sizes else NOTHING
    except Exception as error:  # noqa: BLE001  the report must not fail on any cell
        reason = str(error)
    return {"sizes": sizes, "choices": [*CHOICES], "reason": reason}


class FitsOf:
    """Computes how the memory of a recording grows, in a thread.

    Args:
        trace: The recording; see :func:`~meta_magic.view.answers.make_reference`.
        update: Sets traits of the report: ``growths``, all results so far;
            ``stretches`` by name of a size; ``fit_at``, the sizes of sliders that these
            are of; and ``fit_state``, with ``is_running`` and a ``message``.
    """

    def __init__(self, trace: Trace, update: Update) -> None:
        self._find: Callable[[], Trace | None] = make_reference(trace.program, trace)
        self._update = update
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._growths: dict[tuple[str, tuple[str, ...]], Growth] = {}
        self._stretches: dict[str, dict[str, Any]] = {}
        self._n_recordings = 0
        self._at: dict[str, int] = {}

    def forget(self) -> None:
        """Stop, and release the recording."""
        self._stopped.set()
        self._find = lambda: None

    def wait(self, timeout: float | None = None) -> None:
        """Return when nothing runs, or after ``timeout`` seconds."""
        if self._thread is not None:
            self._thread.join(timeout)

    def receive(self, asked: Mapping[str, Any]) -> None:
        """Start the computation that a message asks for; stop it without a ``name``.

        It is how memory grows with the size ``name``, with each of ``choices``, with
        all and with none, and the largest size that fits the accelerator ``device``;
        ``at`` has the numbers of the sliders.
        """
        if "name" not in asked:
            self._stopped.set()
            return
        with self._lock:  # messages may come on several threads
            if self._thread is not None and self._thread.is_alive():
                return
            self._stopped.clear()
            self._n_recordings = 0
            self._thread = threading.Thread(
                target=self._run, args=(asked,), name="meta_magic fit", daemon=True
            )
            self._thread.start()

    def _run(self, asked: Mapping[str, Any]) -> None:
        """Compute in a thread; no error may leave it."""
        message = ""
        self._update(fit_state={"is_running": True, "message": "looking at the cell"})
        try:
            self._compute(asked)
        except StoppedError:
            message = "stopped"
        except MetaMagicError as error:
            message = str(error)
        except BaseException as error:  # noqa: BLE001  whatever a fork may raise
            message = f"{type(error).__name__}: {error}"
        self._update(fit_state={"is_running": False, "message": message})

    def _compute(self, asked: Mapping[str, Any]) -> None:
        """Compute each combination of choices, and send it at once."""
        trace, name = self._find(), asked["name"]
        if trace is None:
            raise TrialError(FORGOTTEN)
        at = asked.get("at", {})
        if at != self._at:
            self._at = at
            self._growths.clear()
            self._stretches.clear()
            self._update(growths=[], stretches={}, fit_at=at)
        recordings = Recordings(trace, self._prepare, at)
        nbytes = find_device(asked["device"]).nbytes
        chosen = asked["choices"]
        whole = [tuple(chosen)] if len(chosen) > 1 else []
        for choices in ((), *((one,) for one in chosen), *whole):
            growth = find_growth(recordings, name, nbytes, choices)
            if not choices:
                if growth.reason is not None:
                    raise TrialError(growth.reason)
                rows: Table[tuple[int, ...]] = Table(list)
                found = [*map(rows.of, find_stretches(recordings, growth))]
                sent = {"sizes": growth.sizes, "row": found, "rows": rows.rows}
                self._stretches[name] = sent
                self._update(stretches=dict(self._stretches))
            self._growths[name, choices] = growth
            self._update(growths=[asdict(growth) for growth in self._growths.values()])

    def _prepare(self) -> None:
        """Wait while another cell is recorded: a child would inherit torch's modes."""
        while RARE_COLLECTION.n_entered and not self._stopped.is_set():
            self._stopped.wait(PAUSE)
        if self._stopped.is_set():
            raise StoppedError
        self._n_recordings += 1
        message = f"recording it again, {self._n_recordings} so far"
        self._update(fit_state={"is_running": True, "message": message})
