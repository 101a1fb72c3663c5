"""Run architectures of transformers, each in a process of its own.

On plain meta memory that is not there is written, and a model may keep what it computed
once on a device for the next time.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import meta_magic as mm
from tests.conformance import architectures
from tests.conformance.apart import Crashed, run_apart

PATIENCE = 300
"""Seconds of a core's time for one run."""

WRAPPERS = frozenset({"aten.lift_fresh.default", "aten.scalar_tensor.default"})
"""How torch makes a tensor of a Python number: not alike on the CPU and on meta."""


class Call(NamedTuple):
    """A forward on which an architecture runs on the CPU.

    Attributes:
        architecture: Its model type.
        dtype: That of its parameters.
        names: Names of its inputs.
        side: Height and width of images; None for what its configuration says.
    """

    architecture: str
    dtype: torch.dtype
    names: tuple[str, ...]
    side: int | None


class Made(NamedTuple):
    """What an operator returned: (shape, dtype) and stride of each tensor."""

    op: str
    metadata: list[tuple[tuple[int, ...], torch.dtype]]
    strides: list[tuple[int, ...] | None]


class Log(TorchDispatchMode):
    """Notes what the operators of a real run return."""

    def __init__(self):
        super().__init__()
        self.made: list[Made] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        returned = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves(returned) if isinstance(t, torch.Tensor)]
        self.made.append(
            Made(
                str(func),
                [(tuple(t.shape), t.dtype) for t in tensors],
                [t.stride() if t.layout is torch.strided else None for t in tensors],
            )
        )
        return returned


def prepare(call: Call) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Build an architecture and its inputs."""
    torch.manual_seed(0)
    torch.set_default_dtype(call.dtype)
    try:
        model = architectures.make_build(call.architecture)().eval()
    finally:
        torch.set_default_dtype(torch.float32)
    main = set(call.names) - {"use_cache"}
    inputs = architectures.make_inputs(model, main, call.side)
    return model, {name: as_dtype(inputs[name], call.dtype) for name in call.names}


def as_dtype(value: Any, dtype: torch.dtype) -> Any:
    """Return an input in the dtype of its model."""
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if is_float else value


def run(call: Call, way: Callable[[], AbstractContextManager[Any]]) -> None:
    """Build an architecture, and run it."""
    with way():
        model, inputs = prepare(call)
        model(**inputs)


def find_call(architecture: str, dtype: torch.dtype) -> Call | None:
    """Return a forward on which it runs on the CPU, None if none is known."""
    try:
        model = architectures.make_build(architecture)().eval()
    except Exception:
        return None
    inputs = architectures.find_inputs(model)
    if inputs is None:
        return None
    for side in (None, 64):
        call = Call(architecture, dtype, tuple(inputs), side)
        try:
            run(call, nullcontext)
        except Exception:
            continue
        return call
    return None


def list_real(call: Call) -> list[Made]:
    """Return what the operators of its forward return on the CPU."""
    model, inputs = prepare(call)
    with Log() as log:
        model(**inputs)
    return [made for made in log.made if made.op not in WRAPPERS]


def list_recorded(call: Call) -> list[Made]:
    """Return what was recorded of its forward as that of the CPU."""
    with mm.record(as_device="cpu") as trace:
        model, inputs = prepare(call)
        torch.zeros(mark := (1, 2, 3, 4))
        model(**inputs)
    begin = next(
        op.index for op in trace.ops if op.outputs and op.outputs[0].shape == mark
    )
    return [
        Made(
            op.op,
            [(t.shape, t.dtype) for t in op.outputs],
            [t.stride for t in op.outputs],
        )
        for op in trace.ops[begin + 1 :]
        if op.op not in WRAPPERS and not is_reading(op)
    ]


def is_reading(op: mm.OpCall) -> bool:
    """Whether an operator took a value off the device, which the CPU just reads."""
    return op.op == "aten._to_copy.default" and op.evaluation is not None


def in_child(function: Callable[..., Any], *args: Any) -> tuple[Any, str]:
    """Call a function in a process of its own.

    Returns:
        What it returned, and "" or why it returned nothing.
    """

    def call() -> Any:
        torch.set_num_threads(1)  # those of the parent are not there
        return function(*args)

    try:
        return run_apart(call, PATIENCE), ""
    except Crashed as error:
        return None, " ".join(str(error).split())[:300]
