"""Describe the call that raised, as the user's own code made it.

``nn.Linear(4, 2)(torch.ones(3))`` fails in ``aten.addmm``; the explanation says
``nn.Linear(4, 2)``, ``torch.ones(3)`` and their shapes. Like ``raised_calls``, this
reads the frames that the error's traceback holds. Read ``find_failed_call`` first.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from linecache import getline
from traceback import walk_tb
from types import FrameType, NoneType, TracebackType
from typing import Any, Final

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
    USERS,
    Called,
    call_module,
    find_called,
    home_of,
    is_torchs,
    walk_traceback,
)
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.module_internals import (
    CALLING,
    buffers_of,
    names_not_persistent,
    parameters_of,
    walk_modules,
)
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.trace.failed_call import WRONG_VALUE, FailedCall, Loading, Operand
from meta_magic.trace.signature import OpaqueArgument, SourcePosition, TensorArgument
from meta_magic.trace.units import cut_lines

MAX_SITES: Final = 16
LOADING: Final = nn.Module.load_state_dict.__code__
SIZES: Final = ("shape", "size")


def describe_error(error: BaseException) -> str:
    """Return type and text of an error, or the line of an assertion without text."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  the user's own
        text = "(its text raises)"
    if not text and isinstance(error, AssertionError):
        for frame, line in walk_tb(error.__traceback__):  # the last one raised
            text = getline(frame.f_code.co_filename, line).strip()
    return cut_lines(f"{type(error).__name__}: {text}")


def find_failed_call(
    error: BaseException | None,
    modes: Sequence[object],
    registry: TensorRegistry,
    borrowed: AbstractContextManager[object],
    *,
    is_probe: bool = False,
) -> FailedCall | None:
    """Return the call that an error came from; None if no call was refused.

    An interrupt, the end of the process, or a missing value is not about the operands:
    to try other operands would take seconds and find nothing. ``borrowed`` puts
    borrowed modules on meta again, as the call saw them.
    """
    if not isinstance(error, Exception) or isinstance(error, MissingValueError):
        return None
    entries = [*walk_traceback(error.__traceback__)]
    frames = [entry.tb_frame for entry in entries]
    try:
        if is_probe:
            return FailedCall(  # only the lines are known
                function=None,
                args=(),
                kwargs={},
                operands=(),
                is_whole=False,
                frames=find_frames(error),
            )
        with RealTorch(), borrowed, DisableTorchFunction():
            calling = [f for f in reversed(frames) if f.f_code is CALLING]
            modules = [frame.f_locals["self"] for frame in calling]
            describer = CallDescriber(registry, _find_sites(entries), modules)
            loading = next((f for f in reversed(frames) if f.f_code is LOADING), None)
            if loading is not None:
                module, state = (loading.f_locals[n] for n in ("self", "state_dict"))
                if isinstance(state, Mapping):
                    return describer.describe_loading(module, state)
            is_deep = isinstance(error, (RecursionError, MemoryError))
            called = Called(None) if is_deep else find_called(frames, modes)
            found = describer.describe(called, error)
            return replace(found, wrong_value=vars(error).get(WRONG_VALUE))
    except Exception:  # noqa: BLE001  must not replace the user's own error
        return None


def find_frames(error: BaseException) -> tuple[SourcePosition, ...]:
    """Return the lines of the user on the way to an error, outermost first."""
    return _list_users(_find_sites([*walk_traceback(error.__traceback__)]))


def _list_users(sites: Sequence[Site]) -> tuple[SourcePosition, ...]:
    return tuple(s.position for s in sites if _is_users(s.frame))


def _find_sites(entries: Sequence[TracebackType]) -> list[Site]:
    """Return the user's own frames of a traceback, and the innermost of a library."""
    own = [entry for entry in entries if not is_torchs(entry.tb_frame)]
    users = [entry for entry in own if _is_users(entry.tb_frame) or entry is own[-1]]
    ends = users[:MAX_SITES] + users[max(MAX_SITES, len(users) - MAX_SITES) :]
    return [make_site(entry) for entry in ends]


def _is_users(frame: FrameType) -> bool:
    return home_of(frame.f_code.co_filename) == USERS


class CallDescriber:
    """Describes the arguments of a call; numbers the tensors among them."""

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
        """Return the record of a call, or of the line's tensors if no call is known."""
        notes = _list_notes(error, called, self._sites)
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
            frames=_list_users(self._sites),
            receiver=self._name_module(called.module),
            notes=notes,
        )

    def describe_loading(self, root: nn.Module, state: Mapping[str, Any]) -> FailedCall:
        """Return the record of a state dictionary that did not fit a module."""
        own = _list_tensors(root)
        pairs = [
            (name, self._number(tensor), self._number(state[name]))
            for name, tensor in own.items()
            if isinstance(state.get(name), Tensor) and state[name].shape != tensor.shape
        ]
        loading = Loading(
            owner=self._name_module(root),
            given=next(iter(self._list_arguments(None, None)), "the state"),
            pairs=tuple(pairs),
            missing=tuple(name for name in own if name not in state),
            unexpected=tuple(str(name) for name in state if name not in own),
            holders=tuple(
                str(key)
                for key, value in state.items()
                if isinstance(value, Mapping) and own and {*own} <= {*value}
            ),
        )
        call = self.describe(Called(None, module=root), RuntimeError())
        for name, *numbers in pairs:
            for number in numbers:
                operand = self._operands[number]
                aliases = (*operand.aliases, name)
                self._operands[number] = replace(operand, aliases=aliases)
        return replace(call, operands=(*self._operands,), loading=loading)

    def _number(self, tensor: Tensor) -> int:
        if id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = len(self._operands)
            self._operands.append(self._describe_operand(tensor))
        return self._numbers[id(tensor)]

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

    def _note_arguments(self, called: Called) -> None:
        """Note how the code writes arguments that have no name."""
        is_class = isinstance(called.function, type)
        values = [*called.args, *(called.kwargs.values() if is_class else ())]
        given = values[3:] if called.function is call_module else values
        n_given = None if is_class else len(given)
        written = self._list_arguments(called.function, n_given)
        pairs = zip(given, written, strict=False)
        self._written = {id(value): text for value, text in pairs}

    def _list_arguments(self, function: object, n_given: int | None) -> list[str]:
        last = self._sites[-1:]
        return [t for site in last for t in list_arguments(site, function, n_given)]

    def _name_module(self, module: nn.Module | None) -> str:
        """Return how the code writes a module, or else its class; "" for none."""
        if module is None:
            return ""
        return (*list_names(module, self._sites), type(module).__name__)[0]

    def _freeze(self, value: Any) -> Any:
        """Return an argument with records for tensors and for unknown objects."""
        if isinstance(value, Tensor):
            return TensorArgument(self._number(value))
        if type(value) in (list, tuple):
            return type(value)(map(self._freeze, value))
        if isinstance(value, tuple):  # a torch.Size, a named tuple
            return tuple(map(self._freeze, value))
        if type(value) is dict:
            return {key: self._freeze(item) for key, item in value.items()}
        is_plain = type(value) in PLAIN or _is_of_torch(value)
        if is_plain or (
            isinstance(value, slice)
            and {type(value.start), type(value.stop), type(value.step)}
            <= {int, NoneType}
        ):
            return value
        self._is_whole = False
        return OpaqueArgument(type(value).__name__)


def _is_of_torch(value: object) -> bool:
    """Whether a value is a class or a function that torch has by its name."""
    home = sys.modules.get(getattr(value, "__module__", None) or "")
    name = getattr(value, "__qualname__", "")
    is_torchs = home is not None and home.__name__.split(".")[0] == "torch"
    return is_torchs and vars(home).get(name) is value


def _list_tensors(module: nn.Module) -> dict[str, Tensor]:
    tensors = {}
    for fqn, part in walk_modules(module):
        skipped = names_not_persistent(part)
        kept = {n: t for n, t in buffers_of(part).items() if n not in skipped}
        for name, tensor in {**parameters_of(part), **kept}.items():
            if tensor is not None:
                tensors[f"{fqn}.{name}" if fqn else name] = tensor
    return tensors


# Sentences about errors that no operator raised


def _list_notes(
    error: BaseException, called: Called, sites: Sequence[Site]
) -> tuple[str, ...]:
    """Return facts about an error that Python or a constructor of torch raised."""
    found: list[str] = []
    for site in sites[-1:]:
        if called.module is not None and isinstance(error, TypeError):
            found += _compare_signature(called, site)
        if isinstance(called.function, type):
            found += _find_empty_modules(called.function, site)
        if called.function is called.module is None:
            found += _count_unpacked(site)
    return tuple(found)


def _compare_signature(called: Called, site: Site) -> Iterator[str]:
    """Yield the signature of a user's ``forward`` that a call does not fit."""
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
        yield f"the signature is {kind.__name__}.forward({names}){where}"


def _count_unpacked(site: Site) -> Iterator[str]:
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


def _find_empty_modules(kind: type, site: Site) -> Iterator[str]:
    """Yield which module gave an optimizer no parameters, and which list hides some."""
    if not issubclass(kind, optim.Optimizer):
        return
    for part in walk_parts(site):
        root = read_expression(part, site.frame)
        if not isinstance(root, nn.Module):
            continue
        modules = [*walk_modules(root)]
        if any(parameters_of(module) for _, module in modules):
            continue
        name = ast.unparse(part)
        yield f"{name} has no parameters"
        for fqn, module in modules:
            for attribute, value in read_attributes(module).items():
                is_plain = type(value) in (list, tuple, dict)
                inside = [held for _, held in walk_held(value)] if is_plain else []
                hides = any(isinstance(v, (nn.Parameter, nn.Module)) for v in inside)
                if hides and not attribute.startswith("_"):
                    path = f"{name}.{fqn}.{attribute}" if fqn else f"{name}.{attribute}"
                    yield (
                        f"{path} is a {type(value).__name__}: its content is no part "
                        "of the module, but that of nn.ModuleList or nn.ModuleDict is"
                    )
