"""Whether a recording would fit at other sizes and with choices: asked from a report.

Each recording is made in a child, forked from a thread that works for the report while
the kernel goes on. Such a child has of all threads only that one: a lock that another
held just then is never given back in it. The interpreter's own locks, and those of its
files and loggers, are made anew; for others the child is ended after
:data:`meta_magic.trials.trial.SECONDS`, and the answer says so.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final, TypeAlias

from meta_magic.cost.device_table import find_device
from meta_magic.errors import MetaMagicError, TrialError
from meta_magic.session.collector import RARE_COLLECTION
from meta_magic.trace.trace import Trace
from meta_magic.trials.growth import Growth, combine, find_growth, find_stretches
from meta_magic.trials.recordings import Recordings
from meta_magic.trials.what_ifs import CHOICES
from meta_magic.view.held import FORGOTTEN, find_none, hold
from meta_magic.view.wire import Table

__all__ = ["FitsOf", "offer_fits"]

Tell: TypeAlias = Callable[..., object]

PAUSE: Final = 0.05
"""Seconds between two looks at whether another recording has ended."""

NOTHING: Final = (
    "the cell reads no name that stands for a positive integer: write batch = 8 "
    "for a size to see how the memory grows with it"
)


class StoppedError(Exception):
    """Raised in the thread that records, where its user stopped it."""


def offer_fits(trace: Trace) -> dict[str, Any]:
    """Return what can be asked of a recording.

    Returns:
        ``sizes``: names and their values; ``choices``: names; ``reason``: why nothing
        can be asked, or "".
    """
    sizes: dict[str, int] = {}
    try:
        sizes = Recordings(trace).list_sizes()
        reason = "" if sizes else NOTHING
    except Exception as error:  # noqa: BLE001  no text of a cell hinders its report
        reason = str(error)
    return {"sizes": sizes, "choices": [*CHOICES], "reason": reason}


class FitsOf:
    """Works out how the memory of a recording grows, in a thread of its own.

    Args:
        trace: The recording; see :func:`~meta_magic.view.held.hold`.
        tell: Is given traits of the report, by name: ``growths``, all that was worked
            out; ``stretches`` by name of a size; and ``fit_state``, whether it
            ``is_running``, and a ``message``.
    """

    def __init__(self, trace: Trace, tell: Tell) -> None:
        self._find: Callable[[], Trace | None] = hold(trace.program, trace)
        self._tell = tell
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._growths: dict[tuple[str, tuple[str, ...]], Growth] = {}
        self._stretches: dict[str, dict[str, Any]] = {}
        self._n_recordings = 0

    def forget(self) -> None:
        """Make no further recording, and let go of the one there is."""
        self._stopped.set()
        self._find = find_none

    def wait(self, timeout: float | None = None) -> None:
        """Return when nothing is being worked out, or after ``timeout`` seconds."""
        if self._thread is not None:
            self._thread.join(timeout)

    def receive(self, asked: Mapping[str, Any]) -> None:
        """Begin to work out what a front end asks, or stop.

        That is: how it grows with the size ``name``, with each of ``choices``, with all
        and with none of them, and the largest that fits the accelerator ``device``.
        Without a name it stops.
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
        """Work it out; the body of the thread, which nothing may leave."""
        message = ""
        self._tell(fit_state={"is_running": True, "message": "looking at the cell"})
        try:
            self._work_out(asked)
        except StoppedError:
            message = "stopped"
        except MetaMagicError as error:
            message = str(error)
        except BaseException as error:  # noqa: BLE001  whatever a fork may raise
            message = f"{type(error).__name__}: {error}"
        self._tell(fit_state={"is_running": False, "message": message})

    def _work_out(self, asked: Mapping[str, Any]) -> None:
        """Tell of each combination of choices as soon as it is known.

        Raises:
            TrialError: The block cannot be run again as it is.
        """
        trace, name = self._find(), asked["name"]
        if trace is None:
            raise TrialError(FORGOTTEN)
        recordings = Recordings(trace, self._prepare)
        nbytes = find_device(asked["device"]).nbytes
        for choices in combine(asked["choices"]):
            growth = find_growth(recordings, name, nbytes, choices)
            if not choices:
                if growth.reason is not None:
                    raise TrialError(growth.reason)
                self._keep_stretches(recordings, growth)
            self._growths[name, choices] = growth
            self._tell(growths=[asdict(growth) for growth in self._growths.values()])

    def _keep_stretches(self, recordings: Recordings, growth: Growth) -> None:
        rows: Table[tuple[int, ...]] = Table(list)
        found = [*map(rows.of, find_stretches(recordings, growth))]
        sent = {"sizes": growth.sizes, "row": found, "rows": rows.rows}
        self._stretches[growth.name] = sent
        self._tell(stretches=dict(self._stretches))

    def _prepare(self) -> None:
        """Wait until nothing else is recorded, whose torch a child would have."""
        while RARE_COLLECTION.n_entered and not self._stopped.is_set():
            self._stopped.wait(PAUSE)
        if self._stopped.is_set():
            raise StoppedError
        self._n_recordings += 1
        message = f"recording it again, {self._n_recordings} so far"
        self._tell(fit_state={"is_running": True, "message": message})
