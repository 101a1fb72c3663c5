"""Formulas of users and libraries: by ``mm.flop_formula``, or registered with torch.

Both are called like the operator, with shapes in place of tensors and the shape of the
result as ``out_shape``. A formula of torch that needs tensors is not used.
"""

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeVar

import torch

from meta_magic.torch_private.dispatcher import OpOverload, schema_of
from meta_magic.trace.formulas.operands import shape_of
from meta_magic.trace.signature import Signature

Function = TypeVar("Function", bound=Callable[..., int])
Packet: Final = type(torch.ops.aten.mm)

OWN: dict[str, Callable[..., int]] = {}
"""Formulas given by ``flop_formula``, by operator."""


def flop_formula(op: object) -> Callable[[Function], Function]:
    """Register a formula for the FLOPs of an operator, 2 for each multiply-add.

    It goes before any other formula and holds for all overloads, in ``trace.cost`` from
    then on, and in ``trace.ops`` of traces whose ``ops`` were not read before::

        @mm.flop_formula(torch.ops.mylib.attend)
        def attend_flops(query_shape, key_shape, *, out_shape, **_):
            return 4 * math.prod(query_shape) * key_shape[-2]

    Args:
        op: The operator (``torch.ops.mylib.attend``, with or without an overload) or
            its name, such as ``"mylib.attend"``.

    Returns:
        A decorator. The function is called like the operator, with shapes (tuples of
        sizes) in place of tensors, and ``out_shape=``, the shape of the result.

    Raises:
        TypeError: ``op`` is neither.

    Example:
        >>> import math
        >>> @flop_formula("my::scale")  # an operator of one's own
        ... def count_scale(shape, **_):
        ...     return math.prod(shape)
    """
    name = name_operator(op)

    def register(formula: Function) -> Function:
        OWN[name] = formula
        return formula

    return register


def name_operator(op: object) -> str:
    """Return an operator's name without its overload."""
    text = str(op).replace("::", ".")
    if not isinstance(op, str | OpOverload | Packet) or "." not in text:
        raise TypeError(
            "flop_formula takes an operator such as torch.ops.mylib.attend, or its "
            f"name 'mylib.attend', not {op!r}"
        )
    return ".".join(text.split(".")[:2])


def count_own(name: str, signature: Signature) -> int | None:
    """Return the FLOPs of a call by a user's formula; None if there is none."""
    formula = OWN.get(name)
    if formula is None:
        return None
    positional, keywords, made = read_arguments(signature)
    return int(formula(*positional, **keywords, out_shape=made))


def count_by_torch(name: str, signature: Signature) -> int | None:
    """Return the FLOPs of a call by a formula that is registered with torch.

    torch's own formulas are for operators that have one of ours, so only a library's
    are used. A library has imported ``flop_counter`` to register them.

    Returns:
        FLOPs; None where there is no formula, or one that needs tensors.

    Source:
        ``torch.utils.flop_counter.register_flop_formula``.
    """
    registered = sys.modules.get("torch.utils.flop_counter")
    namespace, _, operator = name.partition(".")
    packet = getattr(getattr(torch.ops, namespace, None), operator, None)
    formula = getattr(registered, "flop_registry", {}).get(packet)
    if formula is None:
        return None
    positional, keywords, made = read_arguments(signature)
    try:
        return int(formula(*positional, **keywords, out_val=made))
    except (AttributeError, AssertionError, LookupError, TypeError):
        return None


def read_arguments(signature: Signature) -> tuple[list[Any], dict[str, Any], Any]:
    """Return positional and keyword arguments and the result, tensors as shapes."""
    given = [(n, shape_of(v, signature.inputs)) for n, v in signature.arguments]
    keywords = keyword_names(signature.op)
    made = shape_of(signature.returns, signature.outputs)
    return (
        [value for name, value in given if name not in keywords],
        {name: value for name, value in given if name in keywords},
        made,
    )


@lru_cache(maxsize=2**10)
def keyword_names(op: str) -> frozenset[str]:
    """Return the names of the keyword-only arguments of an operator."""
    namespace, name, overload = op.split(".")
    packet = getattr(getattr(torch.ops, namespace), name)
    schema = schema_of(getattr(packet, overload))
    return frozenset(a.name for a in schema.arguments if a.kwarg_only)
