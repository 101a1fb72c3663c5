"""Find the call of torch that raised the error which ended a block.

``torch.ones(2) @ torch.ones(3)`` ends a block: ``find_raised`` describes the operator
for the trace, and ``find_called`` finds the function or module that the user's code
called, for the explanation. Both read the frames that the error's traceback holds.
``choose_frames`` chooses the frames that are shown: the user's own, and below them the
innermost one of a library other than torch.
"""

import inspect
import re
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from types import FrameType, FunctionType, TracebackType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from meta_magic.recording.identities.call_sites import (
    BACKWARD,
    FORWARD,
    PACKAGE,
    TORCH_FILES,
    Running,
    describe_function,
    is_stdlib,
)
from meta_magic.recording.identities.tensors import name_tensors, tensors_in
from meta_magic.recording.intercept.dispatch_mode import DispatchMode
from meta_magic.recording.intercept.function_mode import FunctionMode
from meta_magic.recording.rows.writers import Writers
from meta_magic.recording.signatures.cache import Describer
from meta_magic.recording.signatures.entries import PLAIN, OpTable
from meta_magic.session.operand_names import read_attributes
from meta_magic.torch_private.modes import DisableTorchFunction, EnableTorchFunction
from meta_magic.torch_private.module_internals import (
    CALLING,
    buffers_of,
    is_made,
    parameters_of,
)
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.torch_private.tensor_internals import DIFFERENTIATING
from meta_magic.trace.program_facts import RaisedCall
from meta_magic.trace.signature import Signature

IN_PACKAGES: Final = re.compile(r".*/(?:site|dist)-packages/([^/.]+)")
OURS: Final = "meta_magic"
TORCHS: Final = "torch"
PYTHONS: Final = "Python"
USERS: Final = ""


class ShownFrames(NamedTuple):
    """The entries of a traceback that are shown, and what is hidden."""

    entries: Sequence[TracebackType]
    folded: Sequence[str]


def choose_frames(error: BaseException, start: TracebackType | None) -> ShownFrames:
    """Return the frames of an error's traceback to show, from one of its entries on.

    Without a frame of torch, all but ours are shown. An error without text, as of a
    bare ``assert``, is shown with the frame that raised it, also if that is torch's.
    """
    entries = [*walk_traceback(start)]
    homes = [home_of(entry.tb_frame.f_code.co_filename) for entry in entries]
    shown = {at for at, home in enumerate(homes) if home == USERS}
    below = range(max(shown, default=-1) + 1, len(homes))
    hidden = {OURS, TORCHS} if str(error) else {OURS}
    shown.update([at for at in below if homes[at] not in hidden][-1:])
    if TORCHS not in homes:
        shown = {at for at, home in enumerate(homes) if home != OURS}
    return ShownFrames(
        [entry for at, entry in enumerate(entries) if at in shown],
        [home for at, home in enumerate(homes) if at not in shown and home != OURS],
    )


def choose_but_ours(_: BaseException, start: TracebackType | None) -> ShownFrames:
    """Return all frames of a traceback but ours."""
    entries = walk_traceback(start)
    files = ((entry, entry.tb_frame.f_code.co_filename) for entry in entries)
    return ShownFrames([e for e, file in files if not file.startswith(PACKAGE)], ())


def choose_all(_: BaseException, start: TracebackType | None) -> ShownFrames:
    """Return all frames of a traceback."""
    return ShownFrames([*walk_traceback(start)], ())


def walk_traceback(traceback: TracebackType | None) -> Iterator[TracebackType]:
    """Yield the entries of a traceback, outermost first."""
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def home_of(file: str) -> str:
    """Return the package that a file belongs to; "" for the user's own code."""
    if file.startswith(PACKAGE):
        return OURS
    if file.startswith(TORCH_FILES):
        return TORCHS
    package = IN_PACKAGES.match(file)
    if package is not None:
        return package[1]
    return PYTHONS if is_stdlib(file) or file.startswith("<frozen ") else USERS


def hide_others(error: BaseException) -> None:
    """Make pytest and IPython hide the frames of an error that are not shown.

    Both hide a frame with a local variable ``__tracebackhide__``. It is added here, as
    an assignment in each function of ours would slow down every call.
    """
    shown = {id(e) for e in choose_frames(error, error.__traceback__).entries}
    for entry in walk_traceback(error.__traceback__):
        frame = entry.tb_frame
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
        if shown and id(entry) not in shown and is_function:
            frame.f_locals["__tracebackhide__"] = True


OPERATOR: Final = DispatchMode.__torch_dispatch__.__code__
FUNCTION: Final = FunctionMode.__torch_function__.__code__
NOT_USERS: Final = frozenset({OURS, TORCHS, PYTHONS})
MAKERS: Final = ("__init__", "__new__")

READ_FROM_TENSORS: Final = frozenset({"device", "dtype"})
"""Arguments of a module's ``__init__`` that its tensors show."""

VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


# The innermost call, for the trace


class Failed(NamedTuple):
    """A call that raised, as found in a traceback.

    Attributes:
        above: The entries of the traceback down to the call, outermost first.
        is_operator: Whether an operator was called; else a function or a module.
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
    write: Writers,
    borrowed: AbstractContextManager[object],
) -> RaisedCall | None:
    """Return the call that raised an error, or its cause; None if no call did."""
    seen: list[BaseException] = []
    with suppress(Exception):  # an error of ours must not replace the user's
        while error is not None and not any(error is other for other in seen):
            failed = _find_failed([*walk_traceback(error.__traceback__)], modes)
            if failed is not None and isinstance(error, Exception):
                with RealTorch(), borrowed:
                    return _describe(failed, error, write)
            seen.append(error)
            error = error.__cause__
    return None


def _find_failed(
    entries: Sequence[TracebackType], modes: Sequence[object]
) -> Failed | None:
    """Return the innermost call of torch, or of a module; None if a hook raised."""
    running, found = None, None
    for at, entry in enumerate(entries):
        frame = entry.tb_frame
        if frame.f_code not in {OPERATOR, FUNCTION}:
            continue
        given = frame.f_locals
        if not any(given["self"] is mode for mode in modes):
            continue
        is_operator = frame.f_code is OPERATOR
        if not is_operator:  # the getter of an attribute has no `running`
            running = given.get("running", Running(given["func"], None))
        call = given["func"], given["args"], given["kwargs"] or {}
        found = Failed(entries[:at], is_operator, *call, running)
    found = found or _find_failed_module(entries)
    if found is None or found.is_operator:
        return found
    below = entries[len(found.above) + 1 :]
    homes = {home_of(entry.tb_frame.f_code.co_filename) for entry in below}
    return found if homes <= NOT_USERS else None


def _find_failed_module(entries: Sequence[TracebackType]) -> Failed | None:
    """Return the innermost call of a module, as of an LSTM that checks its input."""
    for at in reversed(range(len(entries))):
        frame = entries[at].tb_frame
        if frame.f_code is CALLING:
            given = frame.f_locals
            args, kwargs = given["args"], given["kwargs"]
            kind = type(given["self"])
            return Failed(entries[: at + 1], False, kind, args, kwargs, None)  # noqa: FBT003
    return None


def _describe(failed: Failed, error: BaseException, write: Writers) -> RaisedCall:
    if failed.is_operator:
        table = OpTable(failed.func)
        op, names = table.name, table.arguments
    else:
        op = str(describe_function(failed.func))
        code = getattr(inspect.unwrap(failed.func), "__code__", None)
        names = () if code is None else code.co_varnames[: code.co_argcount]
    with DisableTorchFunction():
        given = tensors_in(failed.args, failed.kwargs)
        seen = [write.registry.read(tensor) for tensor in given]
    site, module_word, module = _locate(failed, write)
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
        call_site=site,
        module_word=module_word,
        goes_on=bool(failed.running and failed.running.located),
        tensors=tuple(number for number, _, _ in seen),
        error=f"{type(error).__name__}: {text}".removesuffix(": "),
        sizes=_read_sizes(read_attributes(module)),
    )


def _locate(failed: Failed, write: Writers) -> tuple[int, int, object]:
    """Return the call site and module word of a call, and the module if any."""
    kinds = {CALLING: FORWARD, DIFFERENTIATING: BACKWARD}
    inner = (e for e in reversed(failed.above) if e.tb_frame.f_code in kinds)
    within = next(inner, None)
    flags = 0 if within is None else kinds[within.tb_frame.f_code]
    running = failed.running
    known = running and running.located
    function, locate = running and running.function, write.sites.locate_raised
    site, owner, *_ = known or locate(function, failed.above, flags)
    if within is None or flags == BACKWARD:
        return site, owner, None
    module = within.tb_frame.f_locals["self"]
    return site, write.calls.extend_last(module) or owner, module


def _read_sizes(attributes: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the first ``in_...`` size of a module that has an ``out_...`` as well."""
    for name, taken in attributes.items():
        given = attributes.get(f"out_{name.removeprefix('in_')}")
        if name.startswith("in_") and type(taken) is type(given) is int:
            return taken, given
    return None


# The user's call, for the explanation


class Called(NamedTuple):
    """What the user's code called, with live arguments."""

    function: Callable[..., Any] | None
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    module: nn.Module | None = None


def find_called(frames: Sequence[FrameType], modes: Sequence[object]) -> Called:
    """Return the call of torch by other code that raised.

    That is a class whose ``__init__`` raised; else the function that our modes saw, or
    the module around it; else the outermost function of torch.
    """
    others = [at for at, frame in enumerate(frames) if not is_torchs(frame)]
    below = frames[max(others, default=-1) + 1 :]
    torchs = (f for f in below if home_of(f.f_code.co_filename) == TORCHS)
    outermost = next(torchs, None)
    made = None if outermost is None else _read_call(outermost)
    if made is not None and isinstance(made.function, type):
        return made
    called: list[FrameType] = []
    for frame in below:
        given = frame.f_locals
        if frame.f_code is CALLING:
            called.append(frame)
        elif frame.f_code is FUNCTION and any(given["self"] is m for m in modes):
            found = Called(given["func"], given["args"], given["kwargs"] or {})
            whole = _read_module_call(called[-1]) if called else found
            # A module may pass other tensors to a function than it was given.
            known = {id(tensor) for tensor in tensors_in(found.args, found.kwargs)}
            passed = {id(tensor) for tensor in tensors_in(whole.args, whole.kwargs)}
            return whole if whole.function and not passed <= known else found
    return _read_module_call(called[-1]) if called else made or Called(None)


def is_torchs(frame: FrameType) -> bool:
    """Whether a frame runs code of torch, of Python or of ours."""
    return home_of(frame.f_code.co_filename) in NOT_USERS


def _read_call(frame: FrameType) -> Called | None:
    """Return the call of a Python function that a frame runs; None if unknown."""
    code = frame.f_code
    names, rest, keywords, given = inspect.getargvalues(frame)
    if not names:
        return None
    owner = given.get(names[0])
    bases = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
    functions = [(base, vars(base).get(code.co_name)) for base in bases]
    for base, function in functions:
        if getattr(_unwrap(function), "__code__", None) is code:
            is_maker = code.co_name in MAKERS
            called, names = (base, names[1:]) if is_maker else (function, names)
            break
    else:
        called = frame.f_globals.get(code.co_name)
        if getattr(_unwrap(called), "__code__", None) is not code:
            return None
    kwargs = {name: given[name] for name in names if name in given}
    args = [*kwargs.values(), *given[rest]] if rest in given else []
    named = {} if keywords is None else given.get(keywords, {})
    return Called(called, args, named if args else {**kwargs, **named})


def _unwrap(function: object) -> object:
    """Return the function below decorators and descriptors."""
    function = getattr(function, "__func__", function)
    return inspect.unwrap(function) if isinstance(function, FunctionType) else None


def _read_module_call(frame: FrameType) -> Called:
    given = frame.f_locals
    module, args, kwargs = given["self"], given["args"], given["kwargs"] or {}
    options = _read_options(module)
    if options is None:
        return Called(None, args, kwargs, module)
    first = (type(module), options, module.training)
    return Called(call_module, (*first, *args), kwargs, module)


def call_module(
    kind: type[nn.Module],
    options: Mapping[str, Any],
    is_training: bool,  # noqa: FBT001  is among positional arguments
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Make a module of class ``kind`` with ``options``, and call it."""
    return kind(**options).train(is_training)(*args, **kwargs)


def _read_options(module: nn.Module) -> dict[str, Any] | None:
    """Return arguments of ``__init__`` that make one of torch's modules again, or None.

    Torch's modules keep these arguments, under the same names. The new module must have
    tensors of the same sizes.
    """
    kind = type(module)
    if getattr(nn, kind.__name__, None) is not kind or not is_made(module):
        return None
    held = {**buffers_of(module), **parameters_of(module)}
    options = {}
    for name, parameter in _list_parameters(kind):
        value = read_attributes(module).get(name, held.get(name, parameter.default))
        if name in held and parameter.annotation is bool:
            value = held[name] is not None
        if _is_plain(value) and name not in READ_FROM_TENSORS:
            options[name] = value
        elif value is not parameter.default or value is inspect.Parameter.empty:
            return None
    dtypes = {p.dtype for p in parameters_of(module).values() if p is not None}
    if len(dtypes) == 1:
        options["dtype"] = dtypes.pop()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with EnableTorchFunction(), torch.device("meta"):
                made = type(kind.__name__, (kind,), WITHOUT_VALUES)(**options)
        except (TypeError, ValueError, RuntimeError, AssertionError):
            return None
    return options if _list_sizes(made) == _list_sizes(module) else None


WITHOUT_VALUES: Final = dict.fromkeys(
    ("reset_parameters", "_reset_parameters"), lambda _: None
)
"""Methods that give tensors no values: of ``nn.Embedding`` they import torch._dynamo,
which takes a second, and writes files that a trial may not write."""


def _list_parameters(kind: type[nn.Module]) -> Iterator[tuple[str, inspect.Parameter]]:
    first = (*typing.get_overloads(kind.__init__), kind.__init__)[0]
    for name, parameter in [*inspect.signature(first).parameters.items()][1:]:
        if parameter.kind not in VARIADIC:
            yield name, parameter


def _is_plain(value: object) -> bool:
    """Whether a value is a tensor, or holds nothing of the user's."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return type(value) in PLAIN or isinstance(value, Tensor)


def _list_sizes(module: nn.Module) -> list[tuple[str, torch.Size]]:
    return [(name, tensor.shape) for name, tensor in name_tensors(module)]
