"""The statements that programs are made of, each a line of Python with gaps in braces.

``{new}`` is a new name, ``{float}`` an earlier tensor with such entries (``scope.py:
FITS``), ``{dim}`` and ``{index}`` belong to the first tensor of the line, and the other
gaps are words from ``WORDS``. A line that the CPU refuses is thrown away, so none need
be valid each time: a new operator is one more line.
"""

from tests.conformance.fuzz.statements import (
    learning,
    operators,
    tensors,
    utilities,
    writes,
)

WORDS: dict[str, list[str]] = {
    **tensors.WORDS,
    **operators.WORDS,
    **writes.WORDS,
    **learning.WORDS,
    **utilities.WORDS,
}

FAMILIES = {
    name: text.strip().splitlines()
    for name, text in {
        "factories": tensors.FACTORIES,
        "draws": tensors.DRAWS,
        "generators": tensors.GENERATORS,
        "views": tensors.VIEWS,
        "pointwise": operators.POINTWISE,
        "reductions": operators.REDUCTIONS,
        "products": operators.PRODUCTS,
        "shaping": operators.SHAPING,
        "writes": writes.WRITES,
        "out": writes.OUT,
        "values": writes.VALUES,
        "construction": learning.CONSTRUCTION,
        "learning": learning.LEARNING,
        "autograd": learning.AUTOGRAD,
        "optimizers": learning.OPTIMIZERS,
        "flags": learning.FLAGS,
        "between": learning.BETWEEN,
        "outside": learning.OUTSIDE,
        "tensor utilities": utilities.TENSOR_UTILITIES,
        "module utilities": utilities.MODULE_UTILITIES,
        "all out": utilities.ALL_OUT,
    }.items()
}

OUT_THEME = {
    "factories": 8, "draws": 8, "views": 3, "pointwise": 3, "writes": 2, "all out": 12,
}  # fmt: skip
"""Of programs that write into ``out=`` of every size."""

THEMES: list[dict[str, int]] = [
    {
        "factories": 8, "draws": 8, "views": 9, "pointwise": 9, "reductions": 5,
        "products": 5, "shaping": 8, "writes": 9, "out": 4, "values": 3, "flags": 1,
        "autograd": 2, "generators": 1,
    },
    {
        "factories": 3, "draws": 4, "views": 3, "pointwise": 3, "reductions": 1,
        "products": 3, "shaping": 2, "writes": 3, "values": 1, "flags": 3,
        "construction": 6, "learning": 12, "autograd": 8, "optimizers": 10,
    },
    {
        "factories": 2, "draws": 10, "generators": 6, "views": 3, "writes": 3,
        "values": 2, "construction": 3, "learning": 3, "autograd": 2, "flags": 1,
    },
    {
        "factories": 4, "draws": 4, "views": 5, "pointwise": 4, "products": 4,
        "reductions": 3, "shaping": 3, "writes": 3, "autograd": 14, "flags": 2,
    },
    {
        "factories": 3, "draws": 4, "views": 4, "pointwise": 3, "reductions": 1,
        "products": 1, "shaping": 2, "writes": 4, "values": 2, "autograd": 4,
        "flags": 1, "tensor utilities": 24,
    },
    {
        "factories": 1, "draws": 3, "views": 2, "writes": 2, "values": 1, "flags": 1,
        "construction": 8, "learning": 10, "autograd": 3, "optimizers": 5,
        "module utilities": 16, "tensor utilities": 2,
    },
    OUT_THEME,
]  # fmt: skip
"""How often each family is drawn from in a program: on tensors, training, draws,
gradients, utilities of tensors, utilities of modules, ``out=``."""

SIMPLE = ("draws", "views", "pointwise", "reductions", "products", "shaping", "writes")
"""Families whose statements may stand below another, such as ``with``."""
