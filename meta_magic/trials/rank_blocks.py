"""``trace.record_ranks()``: a cell recorded as other ranks of its world, in children.

Each child is a new process: it runs the earlier cells that the cell rests on, as
``slices`` finds them, and then the cell. Read :func:`record_block_ranks`.
"""

import ast
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meta_magic.errors import WorldError
from meta_magic.ranks.nursery import run_side_by_side
from meta_magic.ranks.recorded_ranks import Ranks, enter_main, read_ranks, record_rank
from meta_magic.trace.notes import CellSource
from meta_magic.trace.rerun import Rerun
from meta_magic.trace.trace import Trace
from meta_magic.trace.world import Peers
from meta_magic.trials.blocks import find_bound, parse_block, split_block, split_modules
from meta_magic.trials.slices import join_slice


def record_block_ranks(
    trace: Trace, ranks: str | Sequence[int], timeout: float = 300.0
) -> Ranks:
    """Return a cell's recordings as several ranks of its world.

    See :meth:`Trace.record_ranks`.
    """
    rerun, world = trace.rerun, trace.world
    if rerun is None or rerun.text is None or world is None:
        raise WorldError(
            "only a cell with %%meta --world is recorded as other ranks: use "
            "meta_magic.record_ranks() for a script"
        )
    chosen = read_ranks(ranks, world.size)
    joined = join_slice(trace)
    whole = rerun if joined is None else joined.rerun
    before, own = split_own(whole, 0 if joined is None else joined.n_above)
    plain = {n: former.kept for n, former in whole.before.items() if former.is_plain}
    if joined is None:
        unknown = sorted({*rerun.before} - {*plain} - find_bound(own))
        listed = ", ".join(unknown)
        limits = f"it is not known which cell makes {listed}" if unknown else ""
    else:
        limits = joined.describe_limits(*plain)
    if limits:
        raise WorldError(f"the cell cannot be recorded as other ranks: {limits}")
    given = {
        "before": before,
        "block": own,
        "file": trace.cell.file,
        "text": trace.source,
        "variables": plain,
        "path": sys.path,
        "options": rerun.options,
    }
    recorded = run_side_by_side(record_cell, given, chosen, timeout)
    return Ranks(recorded)


def split_own(rerun: Rerun, n_above: int) -> tuple[ast.Module, ast.Module]:
    """Return the statements of earlier cells, and the cell's own, at their own lines.

    Args:
        rerun: The cell, with the cells before it.
        n_above: How many lines are above the cell.
    """
    block = parse_block(rerun)
    _, body = split_modules(rerun, block.body)  # a new process imports the modules
    before, own = split_block(ast.Module(body, []), rerun.own_line)
    for node in own.body:
        ast.increment_lineno(node, -n_above)
    return before, own


def record_cell(rank: int, peers: Peers, given: dict[str, Any]) -> Trace:
    """Return the trace of a cell that is run as one rank of a world.

    Raises:
        WorldError: An earlier cell raises.
    """
    sys.path[:] = given["path"]
    variables = vars(enter_main(Path(given["file"]), ()))
    variables.update(given["variables"])
    options = given["options"]
    options = options._replace(world=options.world._replace(rank=rank))
    if given["before"].body:
        earlier = record_rank(given["before"], "<cells>", options, variables)
        if earlier.error is not None:
            raise WorldError(f"an earlier cell raises {earlier.error}")
    source = CellSource(text=given["text"], file=given["file"])
    options = options._replace(peers=peers)
    return record_rank(given["block"], given["file"], options, variables, source)
