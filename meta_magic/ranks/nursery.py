"""Run one function for several processes of a world, each in a child, side by side.

The nursery is a process that imports torch once, and forks a child for each rank that
is to be recorded, and for each that another one waits for. Their results lie in a
folder that all share. Read :func:`run_side_by_side`, then :func:`main`.
"""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from meta_magic.errors import WorldError
from meta_magic.trace.world import Peers

RESULT: Final = "rank-{}-result"
OUTPUT: Final = "rank-{}-output"
N_LINES: Final = 3
"""Lines of a child's output that an error shows."""

HOME: Final = str(Path(__file__).parents[2])
CODE: Final = (
    f"import sys; sys.path.append({HOME!r}); "
    "from meta_magic.ranks.nursery import main; main()"
)


Work: TypeAlias = Callable[[int, Peers, Any], object]


class Request(NamedTuple):
    """What the children are to do.

    Attributes:
        work: A function and what it needs, pickled. It is called with a rank, the
            processes that are recorded at the same time, and what it needs; what it
            returns is pickled.
        ranks: The ranks to call it with; others are if one of these waits for them.
        n_at_once: How many of ``ranks`` run at the same time.
        folder: The folder that they share.
    """

    work: bytes
    ranks: tuple[int, ...]
    n_at_once: int
    folder: str


def run_side_by_side(
    work: Work, given: object, ranks: Sequence[int], timeout: float
) -> dict[int, Any]:
    """Call a function for each rank, in children side by side; return the results.

    Args:
        work: The function; see :class:`Request`. A module must hold it.
        given: What it needs.
        ranks: The ranks; the results may be of more.
        timeout: Seconds that all may take together.

    Raises:
        WorldError: A process ended without a result, or they took too long.
    """
    results, lacking = {}, []
    with tempfile.TemporaryDirectory() as folder:
        n_at_once = os.cpu_count() or 1
        run_nursery(
            Request(pickle.dumps((work, given)), tuple(ranks), n_at_once, folder),
            timeout,
        )
        for output in Path(folder).glob(OUTPUT.format("*")):
            rank = int(output.name.split("-")[1])
            result = Path(folder) / RESULT.format(rank)
            if result.exists():
                results[rank] = pickle.loads(result.read_bytes())  # noqa: S301  our own child's
            else:
                said = output.read_text(errors="replace").strip().splitlines()
                lacking.append(
                    f"rank {rank} ended without a result: {' '.join(said[-N_LINES:])}"
                )
    if lacking:
        raise WorldError("; ".join(lacking))
    return dict(sorted(results.items()))


def run_nursery(request: Request, timeout: float) -> None:
    """Run the process that starts the children, up to a time limit."""
    nursery = subprocess.Popen(  # noqa: S603  ourselves
        [sys.executable, "-P", "-W", "ignore", "-c", CODE],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"MPLBACKEND": "Agg", **os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    try:
        _, said = nursery.communicate(pickle.dumps(request), timeout)
    except subprocess.TimeoutExpired:
        raise WorldError(f"the ranks took more than {timeout:.0f} s") from None
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(nursery.pid, signal.SIGKILL)  # with all children
        nursery.wait()
    if nursery.returncode:
        raise WorldError(f"the ranks could not be run: {said.decode()[-500:]}")


def main() -> None:
    """Call the function that the standard input names, for all its ranks."""
    request: Request = pickle.load(sys.stdin.buffer)  # noqa: S301  our own parent's
    # What most scripts of a world import: once, for all children.
    import torch.distributed.fsdp  # noqa: PLC0415
    import torch.distributed.tensor.parallel  # noqa: F401, PLC0415

    from meta_magic.recording.intercept.world import messages  # noqa: PLC0415

    folder = Path(request.folder)
    waiting, running = list(request.ranks), dict[int, int]()
    started: set[int] = set()
    while waiting or running:
        wanted = find_wanted(folder, messages.WANTED) - started
        n_free = request.n_at_once - len(running)
        for rank in [*wanted, *(r for r in waiting[: max(0, n_free)])]:
            if rank not in started:
                started.add(rank)
                running[start(rank, request)] = rank
        waiting = [rank for rank in waiting if rank not in started]
        for process in find_ended(running):
            (folder / messages.ENDED.format(running.pop(process))).touch()
        time.sleep(0.005)


def find_wanted(folder: Path, name: str) -> set[int]:
    """Return the processes that others wait for."""
    return {int(path.name.split("-")[1]) for path in folder.glob(name.format("*"))}


def find_ended(running: Iterable[int]) -> list[int]:
    """Return the children that have ended."""
    ended = []
    for process in running:
        with suppress(ChildProcessError):
            if os.waitpid(process, os.WNOHANG)[0]:
                ended.append(process)
    return ended


def start(rank: int, request: Request) -> int:
    """Fork a child for a rank; return its number."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        run(rank, request)
        code = 0
    except BaseException:  # noqa: BLE001  the parent reads it from the output
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(rank: int, request: Request) -> None:
    """Call the function for one rank, and leave its result in the folder."""
    folder = Path(request.folder)
    output = os.open(folder / OUTPUT.format(rank), os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    work, given = pickle.loads(request.work)  # noqa: S301  our own parent's
    peers = Peers(request.folder, request.ranks)
    result = work(rank, peers, given)
    path = folder / RESULT.format(rank)
    path.with_suffix(".part").write_bytes(pickle.dumps(result))
    path.with_suffix(".part").rename(path)
