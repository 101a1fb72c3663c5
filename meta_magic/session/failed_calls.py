"""Describe the call that raised, as the user's own code made it.

As in ``raised_calls``, all is read from the frames that the error's traceback holds:
there the innermost operator, here the function that the user or his library called, or
else the module.
"""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple

from torch import Tensor, nn, optim

from meta_magic.errors import MissingValueError
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.signatures.entries import PLAIN
from meta_magic.session.operand_names import (
    Site,
    list_arguments,
    list_names,
    list_written,
    make_site,
    name_in_modules,
    read_attributes,
    read_expression,
    walk_held,
    walk_parts,
)
from meta_magic.session.raised_calls import (
    Called,
    call_module,
    find_called,
    is_torchs,
)
from meta_magic.session.shown_frames import USERS, home_of, walk_traceback
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.module_internals import (
    CALLING,
    buffers_of,
    names_not_persistent,
    parameters_of,
    walk_modules,
)
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.trace.failed_call import FailedCall, Loading, Operand
from meta_magic.trace.signature import OpaqueArgument, TensorArgument

MAX_SITES: Final = 16


def describe_error(error: BaseException) -> str:
    """Return type and text of an error; one may fail to say its own."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  the user's own
        return f"{type(error).__name__}: (its text raises)"


def find_failed_call(
    error: BaseException | None,
    modes: Sequence[object],
    registry: TensorRegistry,
    lending: AbstractContextManager[object],
) -> FailedCall | None:
    """Return the call that an error came from; None if no call was refused.

    An interrupt, the end of the process, or a value that could not be had say nothing
    of the operands: other operands would be tried in vain, for seconds.

    Args:
        error: What ended the block.
        modes: Those of the recording.
        registry: Knows tensors by number.
        lending: Has real modules as the call saw them.
    """
    if not isinstance(error, Exception) or isinstance(error, MissingValueError):
        return None
    entries = [*walk_traceback(error.__traceback__)]
    frames = [entry.tb_frame for entry in entries]
    try:
        with RealTorch(), lending, DisableTorchFunction():
            described = Arguments(registry, find_sites(entries), find_modules(entries))
            loaded = find_loading(frames)
            if loaded is not None:
                return described.describe_loading(loaded)
            is_deep = isinstance(error, (RecursionError, MemoryError))
            called = Called(None) if is_deep else find_called(frames, modes)
            return described.describe(called, error)
    except Exception:  # noqa: BLE001  never in the place of the user's own
        return None


def find_sites(entries: Sequence[TracebackType]) -> list[Site]:
    """Return the user's own frames of a traceback, and an innermost library's.

    Of very many, as of a recursion, those at both ends.
    """
    own = [entry for entry in entries if not is_torchs(entry.tb_frame)]
    users = [entry for entry in own if is_users(entry.tb_frame) or entry is own[-1]]
    ends = users[:MAX_SITES] + users[max(MAX_SITES, len(users) - MAX_SITES) :]
    return [make_site(entry) for entry in ends]


def find_modules(entries: Sequence[TracebackType]) -> list[nn.Module]:
    """Return the modules that were being called, the innermost first."""
    frames = (entry.tb_frame for entry in reversed(entries))
    return [f.f_locals["self"] for f in frames if f.f_code is CALLING]


class Loaded(NamedTuple):
    """A call of ``load_state_dict`` that raised.

    Attributes:
        module: The module.
        state: What was to be loaded.
    """

    module: nn.Module
    state: Mapping[str, Any]


class Arguments:
    """Describes what a call was given; owns the tensors met so far.

    Args:
        registry: Knows tensors by number.
        sites: The frames on the way to the call, outermost first.
        modules: The modules on the way, innermost first.
    """

    def __init__(
        self,
        registry: TensorRegistry,
        sites: Sequence[Site],
        modules: Sequence[nn.Module],
    ) -> None:
        self._registry = registry
        self._sites = sites
        self._modules = modules
        self._operands: list[Operand] = []
        self._numbers: dict[int, int] = {}
        self._written: dict[int, str] = {}
        self._is_whole = True

    def describe(self, called: Called, error: BaseException) -> FailedCall:
        """Return the record of a call; without one, of the tensors that are written."""
        remarks = list_remarks(error, called, self._sites)
        args, kwargs = called.args, called.kwargs
        if called.function is called.module is None:
            args = list_written(self._sites[-1:])
        self._note_arguments(called)
        frozen = tuple(map(self._freeze, args))
        named = {name: self._freeze(value) for name, value in kwargs.items()}
        return FailedCall(
            function=called.function,
            args=frozen,
            kwargs=named,
            operands=tuple(self._operands),
            is_whole=self._is_whole,
            frames=tuple(s.position for s in self._sites if is_users(s.frame)),
            receiver=self._name_module(called.module),
            remarks=remarks,
        )

    def describe_loading(self, loaded: Loaded) -> FailedCall:
        """Return the record of a state dictionary that did not fit."""
        owner = self._name_module(loaded.module)
        given = next(iter(self._list_arguments(None, None)), "the state")
        loading = describe_loading(loaded, owner, given, self._number)
        called = self.describe(Called(None, module=loaded.module), RuntimeError())
        for name, *numbers in loading.pairs:
            for number in numbers:
                operand = self._operands[number]
                aliases = (*operand.aliases, name)
                self._operands[number] = replace(operand, aliases=aliases)
        return replace(called, operands=(*self._operands,), loading=loading)

    def _number(self, tensor: Tensor) -> int:
        """Return the number of a tensor among the operands."""
        if id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = len(self._operands)
            self._operands.append(self._describe_operand(tensor))
        return self._numbers[id(tensor)]

    def _note_arguments(self, called: Called) -> None:
        """Note how the code writes arguments that it has no names for."""
        is_class = isinstance(called.function, type)
        values = [*called.args, *(called.kwargs.values() if is_class else ())]
        given = values[3:] if called.function is call_module else values
        n_given = None if is_class else len(given)
        written = self._list_arguments(called.function, n_given)
        pairs = zip(given, written, strict=False)
        self._written = {id(value): text for value, text in pairs}

    def _list_arguments(self, function: object, n_given: int | None) -> list[str]:
        """Return how the code writes the arguments of the call."""
        last = self._sites[-1:]
        return [t for site in last for t in list_arguments(site, function, n_given)]

    def _name_module(self, module: nn.Module | None) -> str:
        """Return how code writes a module, or else its class; "" for none."""
        if module is None:
            return ""
        return (*list_names(module, self._sites), type(module).__name__)[0]

    def _freeze(self, value: Any) -> Any:
        """Return an argument without tensors, nor what might hold one."""
        if isinstance(value, Tensor):
            return TensorArgument(self._number(value))
        if type(value) in (list, tuple):
            return type(value)(map(self._freeze, value))
        if isinstance(value, tuple):  # a size, a named one
            return tuple(map(self._freeze, value))
        if type(value) is dict:
            return {key: self._freeze(item) for key, item in value.items()}
        is_slice = isinstance(value, slice)
        is_plain = type(value) in PLAIN or is_of_torch(value)
        if is_plain or (is_slice and holds_integers(value)):
            return value
        self._is_whole = False
        return OpaqueArgument(type(value).__name__)

    def _describe_operand(self, tensor: Tensor) -> Operand:
        names = list_names(tensor, self._sites)
        held = name_in_modules(tensor, self._modules)
        name, *aliases = names or [held or self._written.get(id(tensor), "")]
        number, _, geometry = self._registry.read(tensor)
        return Operand(
            name=name,
            aliases=tuple(aliases),
            tensor=number,
            geometry=geometry.record,
            requires_grad=tensor.requires_grad,
            is_leaf=tensor.is_leaf,
        )


def is_users(frame: FrameType) -> bool:
    """Whether a frame is the user's own."""
    return home_of(frame.f_code.co_filename) == USERS


def is_of_torch(value: object) -> bool:
    """Whether a value is a class or a function that torch has by its name."""
    home = sys.modules.get(getattr(value, "__module__", None) or "")
    name = getattr(value, "__qualname__", "")
    is_torchs = home is not None and home.__name__.split(".")[0] == "torch"
    return is_torchs and vars(home).get(name) is value


def holds_integers(value: slice) -> bool:
    """Whether a slice has no tensor for an end."""
    ends = (value.start, value.stop, value.step)
    return all(end is None or type(end) is int for end in ends)


LOADING = nn.Module.load_state_dict.__code__


def find_loading(frames: Sequence[FrameType]) -> Loaded | None:
    """Return which state was to be loaded into what, where that raised."""
    for frame in reversed(frames):
        if frame.f_code is LOADING:
            module, state = (frame.f_locals[name] for name in ("self", "state_dict"))
            return Loaded(module, state) if isinstance(state, Mapping) else None
    return None


def describe_loading(
    loaded: Loaded, owner: str, given: str, number: Callable[[Tensor], int]
) -> Loading:
    """Return the record of a state that did not fit.

    Args:
        loaded: What was to be loaded.
        owner: How the user's code writes the module.
        given: How it writes the state.
        number: Returns the number of a tensor among the operands.
    """
    own, state = list_tensors(loaded.module), loaded.state
    pairs = [
        (name, number(tensor), number(state[name]))
        for name, tensor in own.items()
        if isinstance(state.get(name), Tensor) and state[name].shape != tensor.shape
    ]
    return Loading(
        owner=owner,
        given=given,
        pairs=tuple(pairs),
        missing=tuple(name for name in own if name not in state),
        unexpected=tuple(str(name) for name in state if name not in own),
        holders=tuple(
            str(key)
            for key, value in state.items()
            if isinstance(value, Mapping) and own and {*own} <= {*value}
        ),
    )


def list_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return what a state dictionary of a module holds, by name."""
    tensors = {}
    for fqn, part in walk_modules(module):
        left = names_not_persistent(part)
        kept = {n: t for n, t in buffers_of(part).items() if n not in left}
        for name, tensor in {**parameters_of(part), **kept}.items():
            if tensor is not None:
                tensors[f"{fqn}.{name}" if fqn else name] = tensor
    return tensors


SIZES = ("shape", "size")


def list_remarks(
    error: BaseException, called: Called, sites: Sequence[Site]
) -> tuple[str, ...]:
    """Return what there is to say of an error that no operator raised."""
    found: list[str] = []
    for site in sites[-1:]:
        if called.module is not None and isinstance(error, TypeError):
            found += tell_signature(called, site)
        if isinstance(called.function, type):
            found += tell_empty(called.function, site)
        if called.function is called.module is None:
            found += tell_unpacked(site)
    return tuple(found)


def tell_signature(called: Called, site: Site) -> Iterator[str]:
    """Yield what a user's module takes, where its call does not fit."""
    kind: Any = type(called.module)
    forward = inspect.unwrap(kind.forward)
    code = getattr(forward, "__code__", None)
    if code is None or called.function is not None:
        return
    signature = inspect.signature(forward)
    try:
        signature.bind(called.module, *called.args, **called.kwargs)
    except TypeError:
        names = ", ".join(signature.parameters)
        is_near = code.co_filename == site.position.file
        where = f" (line {code.co_firstlineno})" if is_near else ""
        yield f"what is asked for is {kind.__name__}.forward({names}){where}"


def tell_unpacked(site: Site) -> Iterator[str]:
    """Yield how many dimensions a tensor has whose sizes are unpacked."""
    node = site.node
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
        return
    sizes = node.value.func if isinstance(node.value, ast.Call) else node.value
    if isinstance(sizes, ast.Attribute) and sizes.attr in SIZES:
        tensor = read_expression(sizes.value, site.frame)
        if isinstance(tensor, Tensor):
            name, n_names = ast.unparse(sizes.value), len(node.targets[0].elts)
            yield f"{name} has {tensor.ndim} dimensions, and {n_names} are unpacked"


def tell_empty(kind: type, site: Site) -> Iterator[str]:
    """Yield which module has no parameters for an optimizer, and where some may be."""
    if not issubclass(kind, optim.Optimizer):
        return
    for part in walk_parts(site):
        module = read_expression(part, site.frame)
        if isinstance(module, nn.Module) and not any(
            parameters_of(m) for _, m in walk_modules(module)
        ):
            name = ast.unparse(part)
            yield f"{name} has no parameters"
            for path, kept in walk_hidden(module):
                yield (
                    f"{name}{path} is a {kept}: what it holds is no part of the module,"
                    " as in nn.ModuleList or nn.ModuleDict it is"
                )


def walk_hidden(root: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the lists and dictionaries in which modules hold others, and their type."""
    for fqn, module in walk_modules(root):
        for name, value in read_attributes(module).items():
            is_kept = not name.startswith("_") and type(value) in (list, tuple, dict)
            if is_kept and any(holds_parameters(held) for _, held in walk_held(value)):
                path = f"{fqn}.{name}" if fqn else name
                yield f".{path}", type(value).__name__


def holds_parameters(value: object) -> bool:
    """Whether a value is a parameter, or a module."""
    return isinstance(value, (nn.Parameter, nn.Module))
