"""Run one function for several ranks of a world, each in a child, side by side.

The nursery is a process that imports torch once, and forks a child for each rank that
is to be recorded, and for each that another one waits for. Their results lie in a
folder that they share. Read :func:`run_side_by_side`, then :func:`main`.
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
from meta_magic.trace.summary import paused_collector
from meta_magic.trace.world import Peers

RESULT: Final = "rank-{}-result"
OUTPUT: Final = "rank-{}-output"
N_LINES: Final = 3
"""Lines of a child's output that an error shows."""

PIPELINES: Final = "torch.distributed.pipelining"

HOME: Final = str(Path(__file__).parents[2])
CODE: Final = (
    f"import sys; sys.path.append({HOME!r}); "
    "from meta_magic.ranks.nursery import main; main(); "
    "import os; sys.stderr.flush(); os._exit(0)"  # torch takes a second to end
)


Work: TypeAlias = Callable[[int, Peers, Any], object]


class Job(NamedTuple):
    """A function to call for some ranks of a world.

    Attributes:
        work: A function and what it needs, pickled. It is called with a rank, the ranks
            that are recorded at the same time, and what it needs; what it returns is
            pickled.
        ranks: The ranks to call it with; a rank that one of these waits for is added.
        code: What the ranks run.
        folder: The folder that they share.
        timeout: Seconds that each child may take, from its own start.
    """

    work: bytes
    ranks: tuple[int, ...]
    code: str
    folder: str
    timeout: float


def run_side_by_side(
    work: Work,
    given: object,
    ranks: Sequence[int],
    timeout: float,
    code: str,
    *,
    is_check: bool = False,
) -> dict[int, Any]:
    """Call a function for each rank, in children side by side; return the results.

    Args:
        work: The function; see :class:`Job`. A module must hold it.
        given: What it needs.
        ranks: The ranks; results may include ranks that these wait for.
        timeout: Seconds that each child may take, from its own start.
        code: What the ranks run.
        is_check: Whether what the children printed is written to the standard error
            when all have ended, and an interrupt ends their blocks, not the children.

    Raises:
        WorldError: A child ended without a result, or took too long; or this system
            forks no processes.
    """
    (results,) = run_all(work, [given], ranks, timeout, code, is_check=is_check)
    if isinstance(results, WorldError):
        raise results
    return results


def run_all(
    work: Work,
    givens: Sequence[object],
    ranks: Sequence[int],
    timeout: float,
    code: str,
    *,
    is_check: bool = False,
) -> list[dict[int, Any] | WorldError]:
    """Call a function for each rank with each of several things that it needs.

    Returns:
        For each of ``givens`` the results by rank, or why there are none.

    Raises:
        WorldError: The children could not be run at all.
    """
    if not hasattr(os, "fork"):
        raise WorldError("several ranks need fork(), which this system lacks")
    from meta_magic.recording.intercept.world.checkpoints import (  # noqa: PLC0415
        remove_unwritten,  # imports torch.distributed
    )

    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder) / str(number) for number in range(len(givens))]
        jobs = [
            Job(pickle.dumps((work, given)), tuple(ranks), code, str(own), timeout)
            for given, own in zip(givens, folders, strict=True)
        ]
        run_nursery(jobs, is_check=is_check)
        for own in folders:
            remove_unwritten(own)
        if is_check:
            for own in folders:
                show_output(own)
        with paused_collector():
            return [*map(read_results, folders)]


def show_output(folder: Path) -> None:
    """Write what the children of a job printed, with the rank before each line."""
    for output in sorted(folder.glob(OUTPUT.format("*"))):
        for line in output.read_text(errors="replace").splitlines():
            sys.stderr.write(f"rank {output.name.split('-')[1]}: {line}\n")


def read_results(folder: Path) -> dict[int, Any] | WorldError:
    """Return a job's results, or the output of the first child without a result."""
    results = {}
    for output in sorted(folder.glob(OUTPUT.format("*"))):
        rank = int(output.name.split("-")[1])
        result = folder / RESULT.format(rank)
        if not result.exists():
            said = output.read_text(errors="replace").strip().splitlines()
            if said[-1:] == ["KeyboardInterrupt"]:  # before its block began
                raise KeyboardInterrupt
            last = " ".join(said[-N_LINES:])
            return WorldError(f"rank {rank} ended without a result: {last}")
        results[rank] = pickle.loads(result.read_bytes())  # noqa: S301  our own child's
    return dict(sorted(results.items()))


def run_nursery(jobs: Sequence[Job], *, is_check: bool) -> None:
    """Run the process that starts the children; end all with it."""
    nursery = subprocess.Popen(  # noqa: S603  ourselves
        [sys.executable, "-P", "-W", "ignore", "-c", CODE],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"MPLBACKEND": "Agg", **os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    try:
        _, said = nursery.communicate(pickle.dumps([*jobs]))
    except KeyboardInterrupt:
        if not is_check:
            raise
        nursery.send_signal(signal.SIGINT)
        _, said = nursery.communicate()
        if nursery.returncode:
            raise
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(nursery.pid, signal.SIGKILL)  # with all children
        nursery.wait()
    if nursery.returncode:
        raise WorldError(f"the ranks could not be run: {said.decode()[-500:]}")


class Child(NamedTuple):
    """A child that runs.

    Attributes:
        job: What it does.
        rank: The rank that it runs as.
        end: The time by which it must have ended.
    """

    job: Job
    rank: int
    end: float


def main() -> None:
    """Run the jobs that the standard input names."""
    jobs: list[Job] = pickle.load(sys.stdin.buffer)  # noqa: S301  our own parent's
    # Import here, once for all children, what most scripts need.
    import torch.distributed.fsdp  # noqa: PLC0415
    import torch.distributed.tensor.parallel  # noqa: F401, PLC0415

    from meta_magic.recording.intercept.world import messages  # noqa: PLC0415
    from meta_magic.torch_private.replacing import import_dynamo  # noqa: PLC0415

    for job in jobs:
        Path(job.folder).mkdir()
    pickle.loads(jobs[0].work)  # noqa: S301  imports what all children need
    if PIPELINES in jobs[0].code:
        import_dynamo()
    waiting = [(job, rank) for job in jobs for rank in job.ranks]
    started, running = set[tuple[str, int]](), dict[int, Child]()
    n_at_once = os.cpu_count() or 1

    def interrupt(*_: object) -> None:
        """Let each child that runs return what it has recorded so far."""
        waiting.clear()
        for process in running:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGINT)

    signal.signal(signal.SIGINT, interrupt)
    while waiting or running:
        wanted = [
            (job, rank)
            for job in {child.job for child in running.values()}
            for rank in find_wanted(Path(job.folder), messages.WANTED)
        ]
        n_free = max(0, n_at_once - len(running))
        for job, rank in [*wanted, *waiting[:n_free]]:
            if (job.folder, rank) not in started:
                started.add((job.folder, rank))
                process = start(rank, job)
                running[process] = Child(job, rank, time.monotonic() + job.timeout)
        waiting[:] = [w for w in waiting if (w[0].folder, w[1]) not in started]
        for process, child in running.items():
            if time.monotonic() > child.end:
                stop(process, child)
        for process in find_ended(running):
            ended = running.pop(process)
            folder = Path(ended.job.folder)
            (folder / messages.ENDED.format(ended.rank)).touch()
        time.sleep(0.005)


def stop(process: int, child: Child) -> None:
    """End a child that took too long."""
    output = Path(child.job.folder) / OUTPUT.format(child.rank)
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
        output.write_text(f"it took more than {child.job.timeout:g} s")


def find_wanted(folder: Path, name: str) -> set[int]:
    """Return the ranks that others wait for."""
    return {int(path.name.split("-")[1]) for path in folder.glob(name.format("*"))}


def find_ended(running: Iterable[int]) -> list[int]:
    """Return the children that have ended."""
    ended = []
    for process in running:
        with suppress(ChildProcessError):
            if os.waitpid(process, os.WNOHANG)[0]:
                ended.append(process)
    return ended


def start(rank: int, job: Job) -> int:
    """Fork a child for a rank; return its number."""
    process = os.fork()
    if process:
        return process
    code = 1
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run(rank, job)
        code = 0
    except BaseException:  # noqa: BLE001  the parent reads it from the output
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(rank: int, job: Job) -> None:
    """Call the function for one rank, and leave its result in the folder."""
    folder = Path(job.folder)
    output = os.open(folder / OUTPUT.format(rank), os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    work, given = pickle.loads(job.work)  # noqa: S301  our own parent's
    peers = Peers(job.folder, job.ranks)
    result = work(rank, peers, given)
    path = folder / RESULT.format(rank)
    path.with_suffix(".part").write_bytes(pickle.dumps(result))
    path.with_suffix(".part").rename(path)
