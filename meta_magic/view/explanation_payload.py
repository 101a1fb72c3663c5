"""The payload of the panel at the top of the report: why the cell failed."""

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meta_magic.explain.explanations import Explanation
    from meta_magic.explain.lineage.lineage_records import Lineage
    from meta_magic.explain.repairs import Repair
    from meta_magic.trace.failed_call import Operand
    from meta_magic.trace.trace import Trace


def explanation_payload(trace: "Trace") -> dict[str, Any] | None:
    """Return why a block failed; None if it did not fail, or nothing is known."""
    found = trace.explanation
    if found is None or found.is_silent:
        return None
    from meta_magic.explain.explanations import MAX_CALLERS, MAX_OPERANDS, walk_repairs  # noqa: PLC0415  few fail

    return {
        "where": found.where,
        "expression": found.expression,
        "callers": found.callers[-MAX_CALLERS:],
        "module": found.module,
        "given": [write_operand(one, found) for one in found.given[:MAX_OPERANDS]],
        "n_more": max(len(found.given) - MAX_OPERANDS, 0),
        "rules": [*found.rules, *found.made, *filter(None, [found.taken])],
        "lineages": [*map(lineage_payload, found.lineages)],
        "repairs": [write_repair(repair, trace) for repair in found.repairs],
        "unrepaired": "" if found.repairs else next(walk_repairs(found), ""),
    }


def write_operand(operand: "Operand", found: "Explanation") -> dict[str, Any]:
    """Return an operand; ``marked`` are the dimensions that the rules name."""
    sentences = (*found.rules, *(lineage.name for lineage in found.lineages))
    shape = operand.geometry.shape
    return {
        "name": operand.name,
        "tensor": operand.tensor,
        "shape": shape,
        "dtype": str(operand.geometry.dtype).removeprefix("torch."),
        "marked": [
            dim for dim in range(len(shape)) if has_dim(sentences, dim, operand.name)
        ],
    }


def has_dim(sentences: tuple[str, ...], dim: int, name: str) -> bool:
    """Whether sentences name a dimension of an operand."""
    pattern = re.compile(rf"dimension {dim} of {re.escape(name)}(?![\w.\[(])")
    return any(map(pattern.search, sentences))


def lineage_payload(lineage: "Lineage") -> dict[str, Any]:
    """Return where a size comes from; each step comes before its sources."""
    return {
        "name": lineage.name.removesuffix(f" ({lineage.size})"),
        "caveat": lineage.caveat,
        "steps": [
            {
                "depth": depth,
                "value": step.value,
                "text": f"{step.text} ..." if is_repeated else step.text,
                "line": step.line or 0,
            }
            for depth, step, is_repeated in lineage.walk()
        ],
    }


def write_repair(repair: "Repair", trace: "Trace") -> dict[str, Any]:
    """Return a repair; ``source`` is the new cell, "" outside of notebooks."""
    head = "" if repair.path else trace.cell.head
    return {
        "diff": repair.diff,
        "cell": repair.cell,
        "source": head and head + repair.source,
        "consequence": repair.consequence,
    }
