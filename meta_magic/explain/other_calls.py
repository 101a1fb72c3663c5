"""What a failed call accepts in the place of an argument, or of the call itself."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from meta_magic.explain.probing import Change, Probe
from meta_magic.trace.failed_call import FailedCall
from meta_magic.trace.signature import TensorArgument
from meta_magic.trace.units import format_shape

__all__ = ["tell_detached", "tell_others"]


def tell_others(probe: Probe) -> Iterator[str]:
    """Yield what is accepted: an item, a module that is made first, a dtype."""
    yield from tell_items(probe)
    yield from tell_made(probe)
    yield from tell_dtype(probe)


def tell_detached(probe: Probe) -> list[str]:
    """Return which operand is accepted without its history, in sentences."""
    detach = Change("{}.detach()", torch.Tensor.detach)
    return [
        f"{operand.name} requires a gradient: {operand.name}.detach() is accepted"
        for number, operand in enumerate(probe.call.operands)
        if operand.requires_grad and probe.run(changes={number: detach}) is not None
    ]


def tell_items(probe: Probe) -> Iterator[str]:
    """Yield which argument is accepted if it is one of its own items."""
    call = probe.call
    for at, value in enumerate(call.args):
        items = value if isinstance(value, (tuple, list)) else ()
        for number, item in enumerate(items):
            is_tensor = isinstance(item, TensorArgument)
            args = (*call.args[:at], item, *call.args[at + 1 :])
            if is_tensor and is_taken(probe, replace(call, args=args)):
                operand = call.operands[item.index]
                name = operand.name.removesuffix(f"[{number}]")
                kind = f"a {type(value).__name__} of {len(items)}"
                shape = format_shape(operand.geometry.shape)
                yield f"{name} is {kind}: its item {number}, {shape}, is accepted"
                return


def tell_made(probe: Probe) -> Iterator[str]:
    """Yield whether a module is to be made first, and then called."""
    kind, call = probe.function, probe.call
    if not (isinstance(kind, type) and issubclass(kind, nn.Module) and call.operands):
        return
    given = tuple(TensorArgument(number) for number, _ in enumerate(call.operands))
    if is_taken(probe, replace(call, args=given, kwargs={}), kind()):
        names = ", ".join(operand.name for operand in call.operands)
        yield f"it is made first, and then called: {kind.__name__}()({names})"


def tell_dtype(probe: Probe) -> Iterator[str]:
    """Yield whether a function that makes a tensor accepts another dtype."""
    kwargs = {**probe.call.kwargs, "dtype": torch.float32}
    is_maker = not probe.call.operands
    if is_maker and is_taken(probe, replace(probe.call, kwargs=kwargs)):
        yield "dtype=torch.float32 is accepted"


def is_taken(probe: Probe, call: FailedCall, function: Any = None) -> bool:
    """Whether another call is accepted."""
    return Probe(function or probe.function, call, probe.record).accepts({})
