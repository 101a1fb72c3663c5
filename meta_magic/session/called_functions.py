"""Find what of torch the user's code called, by the frames of an error's traceback.

A class where its ``__init__`` raised; else the function that our modes saw; else the
module, as its constructor makes one anew; else the outermost function of torch.
"""

import inspect
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, FunctionType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.signatures.entries import PLAIN
from meta_magic.session.module_names import read_attributes
from meta_magic.session.raised_calls import FUNCTION
from meta_magic.session.shown_frames import OURS, PYTHONS, TORCHS, home_of
from meta_magic.torch_private.modes import EnableTorchFunction
from meta_magic.torch_private.module_internals import (
    CALLING,
    buffers_of,
    is_made,
    parameters_of,
    walk_modules,
)

__all__ = ["Called", "call_module", "find_called", "is_torchs"]

MAKERS: Final = ("__init__", "__new__")

ABROAD: Final = frozenset({"device", "dtype"})
"""What a module is told that is read from its tensors."""

VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Called(NamedTuple):
    """What was called, with live arguments.

    Attributes:
        function: It; None if it cannot be called again.
        args: Positional arguments.
        kwargs: Keyword arguments.
        module: The module whose call it was; None for a function.
    """

    function: Callable[..., Any] | None
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    module: nn.Module | None = None


def find_called(frames: Sequence[FrameType], modes: Sequence[object]) -> Called:
    """Return what code that is not torch's called of torch, and raised there.

    Args:
        frames: Those of a traceback, outermost first.
        modes: Those of the recording.
    """
    others = [at for at, frame in enumerate(frames) if not is_torchs(frame)]
    below = frames[max(others, default=-1) + 1 :]
    outermost = next(
        (f for f in below if home_of(f.f_code.co_filename) == TORCHS), None
    )
    made = None if outermost is None else read_call(outermost)
    if made is not None and isinstance(made.function, type):
        return made
    called: list[FrameType] = []
    for frame in below:
        given = frame.f_locals
        if frame.f_code is CALLING:
            called.append(frame)
        elif frame.f_code is FUNCTION and any(given["self"] is m for m in modes):
            found = Called(given["func"], given["args"], given["kwargs"] or {})
            whole = read_module_call(called[-1]) if called else found
            return whole if whole.function and is_prepared(whole, found) else found
    return read_module_call(called[-1]) if called else made or Called(None)


def is_prepared(whole: Called, inner: Called) -> bool:
    """Whether a module made other tensors of those it was given, for a call within."""
    known = {id(tensor) for tensor in tensors_in(inner.args, inner.kwargs)}
    given = tensors_in(whole.args, whole.kwargs)
    return any(id(tensor) not in known for tensor in given)


def is_torchs(frame: FrameType) -> bool:
    """Whether a frame runs torch's code, or what torch or we called."""
    return home_of(frame.f_code.co_filename) in {OURS, TORCHS, PYTHONS}


def read_call(frame: FrameType) -> Called | None:
    """Return the call of a function of Python that a frame runs; None if unknown."""
    code = frame.f_code
    names, rest, keywords, given = inspect.getargvalues(frame)
    if not names:
        return None
    owner = given.get(names[0])
    bases = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
    functions = [(base, vars(base).get(code.co_name)) for base in bases]
    for base, function in functions:
        if getattr(unwrap(function), "__code__", None) is code:
            is_maker = code.co_name in MAKERS
            called, names = (base, names[1:]) if is_maker else (function, names)
            break
    else:
        called = frame.f_globals.get(code.co_name)
        if getattr(unwrap(called), "__code__", None) is not code:
            return None
    kwargs = {name: given[name] for name in names if name in given}
    args = [*kwargs.values(), *given[rest]] if rest in given else []
    named = {} if keywords is None else given.get(keywords, {})
    return Called(called, args, named if args else {**kwargs, **named})


def unwrap(function: object) -> object:
    """Return the function that decorators and descriptors are around."""
    function = getattr(function, "__func__", function)
    return inspect.unwrap(function) if isinstance(function, FunctionType) else None


def read_module_call(frame: FrameType) -> Called:
    """Return the call of a module that a frame runs."""
    given = frame.f_locals
    module, args, kwargs = given["self"], given["args"], given["kwargs"] or {}
    told = read_told(module)
    if told is None:
        return Called(None, args, kwargs, module)
    first = (type(module), told, module.training)
    return Called(call_module, (*first, *args), kwargs, module)


def call_module(
    kind: type[nn.Module],
    told: Mapping[str, Any],
    is_training: bool,  # noqa: FBT001  stands among positional arguments
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Make a module and call it.

    Args:
        kind: Its class.
        told: What that is told.
        is_training: As ``nn.Module.train`` is told.
        *args: Of the call.
        **kwargs: As well.
    """
    return kind(**told).train(is_training)(*args, **kwargs)


def read_told(module: nn.Module) -> dict[str, Any] | None:
    """Return what makes a module of torch's like one, or None.

    Torch's modules keep what they are told, under the same names. What is made so has
    to have tensors of the same sizes.
    """
    kind = type(module)
    if getattr(nn, kind.__name__, None) is not kind or not is_made(module):
        return None
    held = {**buffers_of(module), **parameters_of(module)}
    told = {}
    for name, parameter in list_parameters(kind):
        value = read_attributes(module).get(name, held.get(name, parameter.default))
        if name in held and parameter.annotation is bool:
            value = held[name] is not None
        if is_plain(value) and name not in ABROAD:
            told[name] = value
        elif value is not parameter.default or value is inspect.Parameter.empty:
            return None
    dtypes = {p.dtype for p in parameters_of(module).values() if p is not None}
    if len(dtypes) == 1:
        told["dtype"] = dtypes.pop()
    return told if is_alike(module, told) else None


def list_parameters(kind: type[nn.Module]) -> Iterator[tuple[str, inspect.Parameter]]:
    """Yield the names and parameters of a class's ``__init__``."""
    first = (*typing.get_overloads(kind.__init__), kind.__init__)[0]
    for name, parameter in [*inspect.signature(first).parameters.items()][1:]:
        if parameter.kind not in VARIADIC:
            yield name, parameter


def is_plain(value: object) -> bool:
    """Whether a value is a tensor, or holds nothing of the user's."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return type(value) in PLAIN or isinstance(value, Tensor)


def is_alike(module: nn.Module, told: Mapping[str, Any]) -> bool:
    """Whether a module made anew has tensors of the same names and sizes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with EnableTorchFunction(), torch.device("meta"):
                made = type(module)(**told)
        except (TypeError, ValueError, RuntimeError, AssertionError):
            return False
    return list_sizes(made) == list_sizes(module)


def list_sizes(module: nn.Module) -> list[tuple[str, str, torch.Size]]:
    """Return the names and sizes of all tensors of a module."""
    return [
        (fqn, name, tensor.shape)
        for fqn, part in walk_modules(module)
        for name, tensor in {**parameters_of(part), **buffers_of(part)}.items()
        if tensor is not None
    ]
