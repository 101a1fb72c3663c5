"""Find the call of torch that raised the error which ended a block.

Nothing is kept for it while the block runs: what was called, and with what, stands in
the frames of our own modes, which the error's traceback holds. So an error that the
block caught is no concern, and calls that succeed pay nothing.
"""

import inspect
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import FrameType, FunctionType, TracebackType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from meta_magic.recording.identities.frame_kinds import BACKWARD, FORWARD
from meta_magic.recording.identities.function_names import describe_function
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.identities.places import Running
from meta_magic.recording.intercept.dispatch_mode import DispatchMode
from meta_magic.recording.intercept.function_mode import FunctionMode
from meta_magic.recording.signatures.descriptions import Describer
from meta_magic.recording.signatures.entries import PLAIN, OpTable
from meta_magic.session.operand_names import read_attributes
from meta_magic.session.program_builder import Written
from meta_magic.session.shown_frames import (
    OURS,
    PYTHONS,
    TORCHS,
    home_of,
    walk_traceback,
)
from meta_magic.torch_private.autograd import DIFFERENTIATING
from meta_magic.torch_private.modes import DisableTorchFunction, EnableTorchFunction
from meta_magic.torch_private.module_internals import (
    CALLING,
    buffers_of,
    is_made,
    parameters_of,
    walk_modules,
)
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.trace.program_facts import RaisedCall
from meta_magic.trace.signature import Signature

OPERATOR: Final = DispatchMode.__torch_dispatch__.__code__
FUNCTION: Final = FunctionMode.__torch_function__.__code__


class Failed(NamedTuple):
    """A call that raised, as a traceback has it.

    Attributes:
        above: The entries of the traceback down to it, outermost first.
        is_operator: Whether it is an operator's, or a function's.
        func: What was called; of a module its class.
        args: Positional arguments.
        kwargs: Keyword arguments.
        running: The function of torch that ran, if any.
    """

    above: Sequence[TracebackType]
    is_operator: bool
    func: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    running: Running | None


def find_raised(
    error: BaseException | None,
    modes: Sequence[object],
    write: Written,
    lending: AbstractContextManager[object],
) -> RaisedCall | None:
    """Return the call that raised an error, or the cause of it; None if none did.

    Args:
        error: The error.
        modes: Those of the recording: another one may have seen the same call.
        write: What the recording wrote.
        lending: Has real modules as the call saw them.
    """
    met: list[BaseException] = []
    try:
        while error is not None and not any(error is other for other in met):
            failed = find_failed([*walk_traceback(error.__traceback__)], modes)
            if failed is not None and isinstance(error, Exception):
                with RealTorch(), lending:
                    return describe(failed, error, write)
            met.append(error)
            error = error.__cause__
    except Exception as other:  # noqa: BLE001  never in the place of the user's own
        text = f"the call that raised is not in the trace: {other}"
        write.findings.note_at("raised", text, None)
    return None


def find_failed(
    entries: Sequence[TracebackType], modes: Sequence[object]
) -> Failed | None:
    """Return the innermost call of torch in a traceback, of a module if of no function.

    None if code of the user's raised within it, as a hook does within ``backward``.
    """
    running, found = None, None
    for at, entry in enumerate(entries):
        frame = entry.tb_frame
        if frame.f_code not in {OPERATOR, FUNCTION}:
            continue
        given = frame.f_locals
        if not any(given["self"] is mode for mode in modes):
            continue
        is_operator = frame.f_code is OPERATOR
        if not is_operator:  # an attribute's getter has none
            running = given.get("running", [given["func"], None, None, ()])
        call = given["func"], given["args"], given["kwargs"] or {}
        found = Failed(entries[:at], is_operator, *call, running)
    found = found or find_module(entries)
    is_torchs = found is None or found.is_operator or is_of_torch(entries, found)
    return found if is_torchs else None


def find_module(entries: Sequence[TracebackType]) -> Failed | None:
    """Return the innermost call of a module, as of an LSTM that checks its input."""
    for at in reversed(range(len(entries))):
        frame = entries[at].tb_frame
        if frame.f_code is CALLING:
            given = frame.f_locals
            return Failed(
                above=entries[: at + 1],
                is_operator=False,
                func=type(given["self"]),
                args=given["args"],
                kwargs=given["kwargs"],
                running=None,
            )
    return None


def is_of_torch(entries: Sequence[TracebackType], found: Failed) -> bool:
    """Whether all that ran within a call is torch's."""
    below = entries[len(found.above) + 1 :]
    homes = {home_of(entry.tb_frame.f_code.co_filename) for entry in below}
    return homes <= {OURS, TORCHS, PYTHONS}


def describe(failed: Failed, error: BaseException, write: Written) -> RaisedCall:
    """Return the record of a call that raised."""
    if failed.is_operator:
        table = OpTable(failed.func)
        op, names = table.name, table.arguments
    else:
        op, names = str(describe_function(failed.func)), names_of(failed.func)
    with DisableTorchFunction():
        given = tensors_in(failed.args, failed.kwargs)
        seen = [write.registry.read(tensor) for tensor in given]
    place, module_word, module = locate(failed, write)
    text = str(error).strip().partition("\n")[0]
    return RaisedCall(
        signature=Signature(
            op=op,
            arguments=Describer().describe_arguments(names, failed.args, failed.kwargs),
            returns=None,
            inputs=tuple(geometry.record for _, _, geometry in seen),
            outputs=(),
            writes=(),
            views=(),
        ),
        place=place,
        module_word=module_word,
        goes_on=bool(failed.running and failed.running[2]),
        tensors=tuple(number for number, _, _ in seen),
        error=f"{type(error).__name__}: {text}".removesuffix(": "),
        sizes=read_sizes(read_attributes(module)),
    )


def locate(failed: Failed, write: Written) -> tuple[int, int, object]:
    """Return place and module word of a call that raised, and the module if any."""
    kinds = {CALLING: FORWARD, DIFFERENTIATING: BACKWARD}
    inner = (e for e in reversed(failed.above) if e.tb_frame.f_code in kinds)
    within = next(inner, None)
    flags = 0 if within is None else kinds[within.tb_frame.f_code]
    function, _, before, _ = failed.running or (None, None, None, ())
    place, owner, *_ = before or write.places.locate_raised(
        function, failed.above, flags
    )
    if within is None or flags == BACKWARD:
        return place, owner, None
    module = within.tb_frame.f_locals["self"]
    return place, write.calls.extend_last(module) or owner, module


def read_sizes(attributes: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the first size ``in_...`` of a module that has one ``out_...``."""
    for name, taken in attributes.items():
        given = attributes.get(f"out_{name.removeprefix('in_')}")
        if name.startswith("in_") and type(taken) is type(given) is int:
            return taken, given
    return None


def names_of(function: Any) -> tuple[str, ...]:
    """Return the names of a function's arguments, where torch wrote it in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return () if code is None else code.co_varnames[: code.co_argcount]


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
