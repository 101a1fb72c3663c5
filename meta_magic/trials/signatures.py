"""Signatures with shapes, for the class of a module that a block called.

``trace.annotate(Block)`` writes ``def forward(self, x: Float[Tensor, "B T D"]): ...``,
as jaxtyping has it. Read :func:`write_signature` first.
"""

import ast
import inspect
import re
from collections.abc import Sequence
from typing import Final

from torch import nn

from meta_magic.errors import TrialError
from meta_magic.trace.calls import ModuleCall, TensorMetadata
from meta_magic.trace.trace import Trace

ANY: Final = "_"
"""A size that has no name, or not the same one in all calls."""

ROUNDED: Final = re.compile(r"ceil\((\w+)/(\w+)\)")
MANY: Final = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def write_signature(trace: Trace, of: type[nn.Module] | nn.Module) -> str:
    """Return imports, and the signature of a class's ``forward`` with shapes.

    Args:
        trace: The recording; with ``dims=``, sizes are names.
        of: The class, or a module of it.

    Raises:
        TrialError: The recording has no call of such a module that returned tensors.
    """
    kind = of if isinstance(of, type) else type(of)
    every = [one for one in trace.module_calls if one.class_name == kind.__qualname__]
    calls = [call for call in every if call.outputs]
    if not calls:
        raise TrialError(f"the recording has no call of a {kind.__name__}")
    writer = Writer(trace)
    written: list[str] = []
    for index, one in enumerate(inspect.signature(kind.forward).parameters.values()):
        text = ""
        if index and one.kind not in MANY:  # the first one is self
            position = () if one.kind is one.KEYWORD_ONLY else (str(index - 1),)
            paths = {one.name, *position}
            given = [  # a tensor that is the argument itself
                next((tensor for path, tensor in call.inputs if path in paths), None)
                for call in calls
            ]
            text = writer.write(given, is_optional=one.default is None)
        starred = str(one.replace(annotation=one.empty, default=one.empty))
        default = "" if one.default is one.empty else f" = {one.default!r}"
        star = "*, " if one.kind is one.KEYWORD_ONLY and "*" not in str(written) else ""
        written.append(f"{star}{starred}{text and f': {text}'}{default}")
    result = writer.write_result(calls)
    imported = ", ".join(sorted(writer.kinds))
    head = f"from jaxtyping import {imported}\nfrom torch import Tensor\n\n\n"
    arguments = ", ".join(written)
    return f"{head}def forward({arguments}){result and f' -> {result}'}: ...\n"


class Writer:
    """Writes annotations, one argument after the other.

    Attributes:
        kinds: The types of jaxtyping that are used.
    """

    def __init__(self, trace: Trace) -> None:
        self._dims = trace.dims
        self._bound: set[str] = set()
        self.kinds: set[str] = set()

    def write(
        self, given: Sequence[TensorMetadata | None], *, is_optional: bool = False
    ) -> str:
        """Return the annotation of an argument or a result; "" for none.

        Args:
            given: The tensor of each call; None where it is none.
            is_optional: Whether the argument may be None.
        """
        tensors = [tensor for tensor in given if tensor is not None]
        kinds = {find_kind(tensor) for tensor in tensors}
        ranks = {len(tensor.shape) for tensor in tensors}
        is_missing = len(tensors) < len(given)
        if len(kinds) != 1 or (is_missing and not is_optional):
            return ""
        self.kinds |= kinds
        sizes = "..."
        if len(ranks) == 1:
            rows = zip(*map(self._read, tensors), strict=True)
            sizes = " ".join(self._write_size({*row}) for row in rows)
        text = f'{kinds.pop()}[Tensor, "{sizes}"]'
        return f"{text} | None" if is_optional else text

    def write_result(self, calls: Sequence[ModuleCall]) -> str:
        """Return the annotation of what calls return: a tensor, or a tuple of them."""
        paths = {tuple(path for path, _ in call.outputs) for call in calls}
        if len(paths) != 1:
            return ""
        (names,) = paths
        columns = zip(
            *([one for _, one in call.outputs] for call in calls), strict=True
        )
        texts = [self.write(column) for column in columns]
        if names == ("",):
            return texts[0]
        is_tuple = names == tuple(map(str, range(len(names)))) and len(names) > 1
        return f"tuple[{', '.join(texts)}]" if is_tuple and all(texts) else ""

    def _read(self, tensor: TensorMetadata) -> tuple[str, ...]:
        if self._dims is None:
            return tuple(map(str, tensor.shape))
        return self._dims.name(tensor.tensor_id, tensor.shape)

    def _write_size(self, texts: set[str]) -> str:
        """Return a dimension as jaxtyping reads it."""
        if len(texts) > 1:
            return ANY
        text = ROUNDED.sub(r"-(-\1//\2)", texts.pop()).replace(" ", "")
        if text.isidentifier():
            self._bound.add(text)
        names = {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
        return text if names <= self._bound else ANY


def find_kind(tensor: TensorMetadata) -> str:
    """Return the type of jaxtyping that has a tensor's dtype."""
    dtype = tensor.dtype
    if dtype.is_complex:
        return "Complex"
    if dtype.is_floating_point:
        return "Float"
    name = str(dtype).removeprefix("torch.")
    return "Bool" if name == "bool" else "UInt" if name.startswith("u") else "Int"
