"""Why a block failed, on the wire: what the panel at the top of the report shows."""

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meta_magic.explain.explanations import Explanation
    from meta_magic.explain.lineage.lineage_records import Lineage
    from meta_magic.explain.repairs import Repair
    from meta_magic.trace.failed_call import Operand
    from meta_magic.trace.trace import Trace

__all__ = ["explanation_payload", "lineage_payload"]


def explanation_payload(trace: "Trace") -> dict[str, Any] | None:
    """Return why a block failed; None for one that did not."""
    found = trace.explanation
    if found is None:
        return None
    from meta_magic.explain.explanation_text import (  # noqa: PLC0415  few fail
        MAX_CALLERS,
        MAX_OPERANDS,
        walk_repairs,
    )

    return {
        "where": found.where,
        "expression": found.expression,
        "callers": found.callers[-MAX_CALLERS:],
        "module": found.module,
        "given": [write_operand(one, found) for one in found.given[:MAX_OPERANDS]],
        "n_more": max(len(found.given) - MAX_OPERANDS, 0),
        "rules": found.rules,
        "lineages": [*map(lineage_payload, found.lineages)],
        "repairs": [write_repair(repair, trace) for repair in found.repairs],
        "unrepaired": "" if found.repairs else next(walk_repairs(found), ""),
    }


def write_operand(operand: "Operand", found: "Explanation") -> dict[str, Any]:
    """Return what a failed call was given; ``marked`` are the dimensions told of."""
    told = (*found.rules, *(lineage.name for lineage in found.lineages))
    shape = operand.geometry.shape
    return {
        "name": operand.name,
        "tensor": operand.tensor,
        "shape": shape,
        "dtype": str(operand.geometry.dtype).removeprefix("torch."),
        "marked": [
            dim for dim in range(len(shape)) if is_told(dim, operand.name, told)
        ],
    }


def is_told(dim: int, name: str, told: tuple[str, ...]) -> bool:
    """Whether sentences are about a dimension of an operand."""
    words = re.compile(rf"dimension {dim} of {re.escape(name)}(?![\w.\[(])")
    return any(map(words.search, told))


def lineage_payload(lineage: "Lineage") -> dict[str, Any]:
    """Return where a size comes from, each step before those that it comes from."""
    return {
        "name": lineage.name.removesuffix(f" ({lineage.size})"),
        "caveat": lineage.caveat,
        "steps": [
            {
                "depth": depth,
                "value": step.value,
                "text": f"{step.text} ..." if is_told else step.text,
                "line": step.line or 0,
            }
            for depth, step, is_told in lineage.walk()
        ],
    }


def write_repair(repair: "Repair", trace: "Trace") -> dict[str, Any]:
    """Return an edit with which a block runs; ``source``: the cell, "" for none."""
    head = trace.cell.head
    return {
        "diff": repair.diff,
        "source": head and head + repair.source,
        "consequence": repair.consequence,
    }
