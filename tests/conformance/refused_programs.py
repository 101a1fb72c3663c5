"""Small programs that the CPU refuses, and the valid ones beside them.

Of torch's operator and module databases: their error inputs; their valid samples; and
valid samples one tensor of which was given another dtype, one size more or a dimension
less.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch.testing._internal.common_modules import ModuleErrorEnum, module_db
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from tests.conformance.copies import Copies
from tests.conformance.operator_samples import OPERATORS, differentiate, is_copied

DTYPES: Final = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.int64,
    torch.bool,
    torch.complex64,
)

OTHER_DTYPE: Final = {
    torch.float32: torch.float64,
    torch.int64: torch.int32,
    torch.bool: torch.uint8,
}

Inputs = tuple[Any, ...]


class Program(NamedTuple):
    """A call that can be made with tensors of any device.

    Attributes:
        name: The operator or module, and what was done to a valid sample.
        inputs: What it is given, tensors on the CPU among it.
        run: Is given those, on a device.
    """

    name: str
    inputs: Inputs
    run: Callable[..., object]


def can_copy(program: Program) -> bool:
    """Whether all that a program is given can be copied to another device."""
    return all(
        is_copied(leaf) and not (is_tensor(leaf) and leaf.is_meta)
        for leaf in tree_leaves(program.inputs)
    )


def thin(found: Sequence[Any], limit: int | None) -> list[Any]:
    """Return so many of what was found, spread over all of it."""
    if limit is None or len(found) <= limit:
        return list(found)
    return [found[i * len(found) // limit] for i in range(limit)]


def inputs_of(sample: Any) -> Inputs:
    """Return what a sample of the operator database gives to its operator."""
    return sample.input, *sample.args, dict(sample.kwargs)


def call_operator(function: Any) -> Callable[..., object]:
    """Return a function of all that an operator is given, the last by name."""
    return lambda *inputs: function(*inputs[:-1], **inputs[-1])


def call_backward(function: Any) -> Callable[..., object]:
    """Return a function that runs an operator and its backward."""
    return lambda *inputs: differentiate(function(*inputs[:-1], **inputs[-1]))


def call_module(module: Any) -> Callable[..., object]:
    """Return a function that builds a module, and calls it if it is to be called."""

    def build(given: Any, called: Any, *, is_differentiated: bool = False) -> None:
        built = module(*given[0], **given[1])
        if called is not None:
            returned = built(*called[0], **called[1])
            if is_differentiated:
                differentiate(returned)

    return build


def operator_errors(_: int | None) -> Iterator[tuple[str, Iterator[Program]]]:
    """Yield the error inputs of each operator."""
    for op in OPERATORS:
        if op.error_inputs_func is not None:
            samples = (error.sample_input for error in op.error_inputs("cpu"))
            run = call_operator(op.op)
            name = op.full_name
            yield name, (Program(name, inputs_of(s), run) for s in samples)


def module_inputs(function: Any, info: Any, dtype: torch.dtype) -> Sequence[Any]:
    """Return what a function of the module database makes, for training and not."""
    given = {"device": "cpu", "dtype": dtype, "requires_grad": False}
    return [
        made
        for train in (True, False)
        for made in function(info, **given, training=train)
    ]


def split(given: Any) -> tuple[Any, Any] | None:
    """Return the arguments of a call of the module database."""
    return None if given is None else (tuple(given.args), dict(given.kwargs))


def module_errors(_: int | None) -> Iterator[tuple[str, Iterator[Program]]]:
    """Yield the error inputs of each module."""
    for info in module_db:
        if info.module_error_inputs_func is not None:
            yield info.name, list_module_errors(info)


def list_module_errors(info: Any) -> Iterator[Program]:
    """Yield the error inputs of a module."""
    for error in module_inputs(info.module_error_inputs_func, info, torch.float32):
        sample = error.module_error_input
        is_built = error.error_on is ModuleErrorEnum.CONSTRUCTION_ERROR
        called = None if is_built else split(sample.forward_input)
        inputs = (split(sample.constructor_input), called)
        yield Program(info.name, inputs, call_module(info.module_cls))


def samples_of(
    op: Any, dtype: torch.dtype, limit: int | None, *, has_gradients: bool = False
) -> list[Inputs]:
    """Return valid samples of an operator."""
    if dtype not in op.dtypes:
        return []
    try:
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=has_gradients))
    except Exception:  # of a dtype for which its samples are not made
        return []
    return [inputs_of(sample) for sample in thin(samples, limit)]


def changed_samples(limit: int | None) -> Iterator[tuple[str, Iterator[Program]]]:
    """Yield valid samples of each operator with one tensor changed."""
    for op in OPERATORS:
        yield op.full_name, change_samples(op, limit)


def change_samples(op: Any, limit: int | None) -> Iterator[Program]:
    """Yield samples of an operator with one tensor changed."""
    random.seed(0)
    for dtype in DTYPES:
        for inputs in samples_of(op, dtype, limit):
            leaves, spec = tree_flatten(inputs)
            for index, how in itertools.product(range(len(leaves)), CHANGES):
                tensor = leaves[index]
                if not isinstance(tensor, torch.Tensor) or not is_copied(tensor):
                    continue
                changed = CHANGES[how](tensor)
                if changed is not None:
                    new = [*leaves[:index], changed, *leaves[index + 1 :]]
                    name = f"{op.full_name} {str(dtype)[6:]} {how}"
                    yield Program(name, tree_unflatten(new, spec), call_operator(op.op))


def change_dtype(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of another dtype."""
    return tensor.to(OTHER_DTYPE.get(tensor.dtype, torch.float32))


def grow(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a tensor that has one element more along some dimension."""
    if not tensor.numel() or not tensor.ndim:
        return None
    dim = random.randrange(tensor.ndim)
    index = torch.arange(tensor.shape[dim] + 1).clamp(max=tensor.shape[dim] - 1)
    return tensor.index_select(dim, index)


def drop_dimension(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the first part of a tensor along its first dimension."""
    return tensor.select(0, 0).clone() if tensor.ndim and tensor.shape[0] else None


CHANGES: Final[dict[str, Callable[[torch.Tensor], torch.Tensor | None]]] = {
    "dtype": change_dtype,
    "size": grow,
    "dimension": drop_dimension,
}


def valid_samples(limit: int | None) -> Iterator[tuple[str, Iterator[Program]]]:
    """Yield valid samples of each operator, in place, with ``out=``, and backward."""
    for op in OPERATORS:
        yield op.full_name, list_valid(op, limit)


def list_valid(op: Any, limit: int | None) -> Iterator[Program]:
    """Yield valid samples of an operator."""
    for dtype in DTYPES:
        name = f"{op.full_name} {str(dtype)[6:]}"
        for inputs in samples_of(op, dtype, limit):
            yield Program(name, inputs, call_operator(op.op))
            if op.inplace_variant is not None:
                run = call_operator(op.inplace_variant)
                yield Program(f"{name} in place", inputs, run)
            if op.supports_out and "out" not in inputs[-1]:
                yield from give_out(op, name, inputs)
        if op.supports_autograd and (dtype.is_floating_point or dtype.is_complex):
            for inputs in samples_of(op, dtype, limit, has_gradients=True):
                yield Program(f"{name} backward", inputs, call_backward(op.op))


def give_out(op: Any, name: str, inputs: Inputs) -> Iterator[Program]:
    """Yield a sample that writes its result where it is told to."""
    copies = Copies("cpu")
    if not all(map(is_copied, tree_leaves(inputs))):
        return
    try:
        first = call_operator(op.op)(*tree_map(copies, inputs))
    except Exception:
        return
    out = tree_map(lambda t: torch.empty_like(t) if is_tensor(t) else t, first)
    given = (*inputs[:-1], {**inputs[-1], "out": out})
    yield Program(f"{name} out=", given, call_operator(op.op))


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor."""
    return isinstance(value, torch.Tensor)


def valid_modules(limit: int | None) -> Iterator[tuple[str, Iterator[Program]]]:
    """Yield valid calls of each module, with their backward."""
    for info in module_db:
        yield info.name, list_valid_modules(info, limit)


def list_valid_modules(info: Any, limit: int | None) -> Iterator[Program]:
    """Yield valid calls of a module."""
    for dtype in DTYPES:
        try:
            samples = module_inputs(info.module_inputs_func, info, dtype)
        except Exception:  # of a dtype for which its samples are not made
            continue
        for sample in thin(samples, limit):
            inputs = (split(sample.constructor_input), split(sample.forward_input))
            build = call_module(info.module_cls)
            is_float = dtype.is_floating_point
            yield Program(
                f"{info.name} {str(dtype)[6:]}",
                (*inputs, is_float),
                lambda a, b, f, build=build: build(a, b, is_differentiated=f),
            )


SOURCES: Final[dict[str, Callable[..., Iterator[tuple[str, Iterator[Program]]]]]] = {
    "operator errors": operator_errors,
    "module errors": module_errors,
    "changed samples": changed_samples,
    "valid samples": valid_samples,
    "valid modules": valid_modules,
}
