"""Find the tensors that an object holds, and group them by their storages.

The object of ``mm.materialize(model)`` is a module, a list, a scheduler of diffusers, a
hook with its closure, or a tensor; ``%meta materialize --all`` takes all variables. No
code of the user's runs while it is searched. Read ``find_tensors`` first.
"""

import sys
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from keyword import iskeyword
from types import (
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor, UntypedStorage, nn
from torch.nn.parameter import is_lazy

from meta_magic.errors import MaterializeError
from meta_magic.recording.identities.call_sites import (
    OWN,
    is_library,
    is_stdlib,
    read_variables,
)
from meta_magic.recording.identities.origins import find_origin, has_origins
from meta_magic.recording.rows.tree_tensors import own_tensors
from meta_magic.replaying.call_runner import read_geometry
from meta_magic.session.operand_names import (
    IPYTHONS,
    bases_of,
    names_of,
    read_attributes,
)
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.module_internals import (
    list_script_tensors,
    names_not_persistent,
    walk_modules,
)
from meta_magic.torch_private.tensor_internals import (
    address_of_storage,
    is_on_meta,
    is_wrapper,
    list_parts,
)
from meta_magic.trace.signature import CPU, Geometry

MAX_SEARCHED: Final = 100_000  # objects
MAX_FRAMES: Final = 100

PLAIN: Final = frozenset(
    {bool, int, float, complex, str, bytes, bytearray, NoneType, range, slice}
    | {torch.dtype, torch.device, torch.Size, torch.layout, torch.Generator}
)

# Types that are not searched, nor are their subclasses: they lead anywhere.
CLOSED: Final = (type, ModuleType, CodeType, FrameType, GeneratorType, weakref.ref)
SHELLS: Final = ("IPython", "ipykernel", "traitlets", "meta_magic")

FOUND: Final = (Tensor, nn.Module)
ORDERED: Final[tuple[Any, ...]] = (list, tuple, deque, set, frozenset)
KEYS: Final = frozenset({str, int, bool})

# Attributes that every module has, and that hold no tensors of its own.
BOOKKEEPING: Final = frozenset(nn.Module().__dict__)


class Held(NamedTuple):
    """A tensor where an object holds it.

    Attributes:
        name: Name within the root object; of a module as ``state_dict`` keys it.
        kind: ``parameter``, ``buffer``, ``attribute``, ``state`` of an optimizer,
            ``gradient``, or ``alias``, another tensor on the storage of one of these.
        is_persistent: Whether ``state_dict`` has it.
        owner: Class name of the object that holds it; "" if it does not matter.
        is_cast: Whether ``dtype=`` casts it.
    """

    name: str
    kind: str
    tensor: Tensor
    is_persistent: bool = False
    owner: str = ""
    is_cast: bool = True


@dataclass(slots=True, eq=False)
class Target:
    """A storage that is to be made real, with all known tensors on it.

    Attributes:
        storage: The storage; without content where ``is_meta``.
        itemsize: Bytes of an element as its first tensor reads it.
        held: The tensors, once for each object that holds them.
        dtype: What they are cast to; None if they are not.
    """

    storage: UntypedStorage
    itemsize: int
    held: list[Held] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    dtype: torch.dtype | None = None
    device: torch.device = CPU

    @property
    def name(self) -> str:
        """Name of the first tensor."""
        return self.held[0].name

    @property
    def is_meta(self) -> bool:
        """Whether the storage is to be made; a real one is only written again."""
        return self.storage.device.type == "meta"

    @property
    def nbytes(self) -> int:
        """Bytes of the new storage."""
        nbytes = self.storage.nbytes()
        if self.dtype is None:
            return nbytes
        return nbytes // self.itemsize * self.dtype.itemsize

    def geometry_of(self, tensor: Tensor) -> Geometry:
        """Return the geometry that one of its tensors will have."""
        geometry = read_geometry(tensor)
        return replace(geometry, dtype=self.dtype or tensor.dtype)


class Variables:
    """The variables of a namespace as one object."""

    def __init__(self, namespace: Mapping[str, object]) -> None:
        for name, value in list(namespace.items()):
            if not name.startswith("_") and name not in IPYTHONS:
                self.__dict__[name] = value


def find_tensors(root: object, seen: set[int] | None = None) -> Iterator[Held]:
    """Yield every tensor of a module and all below it, or of another object.

    ``seen`` gets the ``id`` of each object that is searched.
    """
    seen = set() if seen is None else seen
    with DisableTorchFunction():
        for path, found in walk(root):
            name = path.removeprefix(".")
            if isinstance(found, Tensor):
                is_parameter = isinstance(found, nn.Parameter)
                kind = "parameter" if is_parameter else "attribute"
                yield Held(name or "tensor", kind, found)
            else:
                yield from find_in_module(found, name, seen)


def find_roots(root: object) -> Iterator[tuple[str, nn.Module]]:
    """Yield name and module of the modules that an object is or holds directly."""
    for path, found in walk(root):
        if isinstance(found, nn.Module):
            yield path.removeprefix("."), found


def find_modules(root: object) -> Iterator[tuple[str, nn.Module]]:
    """Yield name and module of every module of an object, under each of its names."""
    for name, top in find_roots(root):
        yield from ((join(name, fqn), module) for fqn, module in walk_modules(top))


def join(prefix: str, name: str) -> str:
    """Return ``prefix.name``, where either may be ""."""
    return f"{prefix}.{name}" if prefix and name else prefix + name


def find_in_module(root: nn.Module, path: str, seen: set[int]) -> Iterator[Held]:
    """Yield every tensor of a module and all below it, under each of its names."""
    found = [
        (fqn, owner, *row)
        for fqn, owner in walk_modules(root)
        # A scripted module holds its tensors where Python does not see them.
        if not isinstance(owner, torch.jit.ScriptModule)
        for row in list_own_and_nested(owner, seen)
    ]
    registered = {id(row[-1]) for row in found if row[3] != "attribute"}
    # Attributes come last: a storage is named after its parameter where it has one.
    found.sort(key=lambda row: row[3] == "attribute")
    for fqn, owner, name, kind, tensor in found:
        if kind == "attribute" and id(tensor) in registered:
            continue  # another way to it, such as an RNN's list of weights
        is_lasting = kind == "buffer" and name not in names_not_persistent(owner)
        is_persistent = kind == "parameter" or is_lasting
        of = type(owner).__name__
        yield Held(join(path, join(fqn, name)), kind, tensor, is_persistent, of)


def list_own_and_nested(
    module: nn.Module, seen: set[int]
) -> Iterator[tuple[str, str, Tensor]]:
    """Yield name, kind and tensor of a module's own tensors, and of its attributes'."""
    yield from own_tensors(module)
    seen.add(id(module.__dict__))
    for name, value in list(module.__dict__.items()):
        kind = type(value)
        if kind in PLAIN or name in BOOKKEEPING or issubclass(kind, Tensor):
            continue
        for path, found in walk(value, name, seen):
            if isinstance(found, Tensor):
                yield path, "attribute", found


def walk(
    value: Any, path: str = "", seen: set[int] | None = None
) -> Iterator[tuple[str, Tensor | nn.Module]]:
    """Yield each tensor and module that a value is or holds, and how one writes it."""
    seen = set() if seen is None else seen
    queue = deque([(path, value)])
    kept: list[object] = []  # alive, so that no other object gets the id of one
    while queue and len(kept) < MAX_SEARCHED:
        path, value = queue.popleft()
        kind: Any = type(value)
        if issubclass(kind, FOUND):
            yield path, value
        elif id(value) not in seen:
            is_closed, readers = find_readers(kind)
            if is_closed and kept:
                continue
            seen.add(id(value))
            kept.append(value)
            for read in readers:
                held = read(value)
                queue += [
                    (path + at, one) for at, one in held if type(one) not in PLAIN
                ]


Items: TypeAlias = Iterable[tuple[str, object]]
"""Values that an object holds, each with the code after its name: ``.x``."""


MAX_KNOWN: Final = 10_000
"""The most objects whose results a function keeps."""

Given = TypeVar("Given")
Result = TypeVar("Result")


def once_for_each(make: Callable[[Given], Result]) -> Callable[[Given], Result]:
    """Return a function that is computed once for each object that it is given.

    An object is known by its identity, and may be deleted: ``functools.lru_cache``
    would keep a class of the user alive, and by its methods the tensors that they use.
    """
    known: dict[int, tuple[weakref.ref[Given], Result]] = {}

    def find(given: Given) -> Result:
        found = known.get(id(given))
        if found is None or found[0]() is not given:
            if len(known) >= MAX_KNOWN:
                known.clear()
            found = known[id(given)] = weakref.ref(given), make(given)
        return found[1]

    return find


@once_for_each
def find_readers(kind: type) -> tuple[bool, list[Callable[[Any], Items]]]:
    """Return whether the objects of a class are closed, and what lists their content.

    Closed ones, those of a shell and ours, are searched only if somebody asks for them.
    """
    is_plain = kind in PLAIN or issubclass(kind, CLOSED)
    is_closed = is_plain or kind.__module__.partition(".")[0] in SHELLS
    return is_closed, list_readers(kind)


def list_readers(kind: type) -> list[Callable[[Any], Items]]:
    """Return functions that list what the objects of a class hold."""
    readers: list[Callable[[Any], Items]] = []
    if issubclass(kind, dict):
        readers.append(list_items)
    readers += [
        partial(list_ordered, base) for base in ORDERED if issubclass(kind, base)
    ]
    if issubclass(kind, FunctionType):
        return [*readers, list_enclosed]
    if issubclass(kind, MethodType):
        return [*readers, lambda m: ((".__self__", m.__self__), ("", m.__func__))]
    if issubclass(kind, partial):
        return [*readers, lambda p: (("", p.func), (".args", p.args), ("", p.keywords))]
    has_slots = any("__slots__" in names_of(base) for base in bases_of(kind))
    return [*readers, list_attributes, *([list_slots] if has_slots else [])]


def list_items(value: dict[object, object]) -> Items:
    """Return what a dictionary holds."""
    for i, (key, held) in enumerate(list(dict.items(value))):
        yield f"[{key!r}]" if type(key) in KEYS else f"[{i}]", held


def list_ordered(base: Any, value: object) -> Items:
    """Return what a list, a tuple, a set or a queue holds."""
    return ((f"[{i}]", held) for i, held in enumerate(base.__iter__(value)))


def list_attributes(value: object) -> Items:
    """Return what the ``__dict__`` of an object holds."""
    return [(f".{name}", held) for name, held in read_attributes(value).items()]


def list_enclosed(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield what a function's closure and its default values hold, by name."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    named = (f".{name}" for name in names[len(names) - len(defaults) :])
    yield from zip(named, defaults, strict=True)
    yield from ((f".{n}", held) for n, held in (function.__kwdefaults__ or {}).items())
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f".{name}", cell.cell_contents
        except ValueError:  # not assigned yet
            continue


def list_slots(value: Any) -> Items:
    """Return what an object holds in the slots of its class."""
    for base in bases_of(type(value)):
        slots = names_of(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            member = names_of(base).get(name)
            if type(member) is MemberDescriptorType:
                try:
                    yield f".{name}", member.__get__(value)
                except AttributeError:  # not assigned yet
                    continue


def list_variables() -> dict[str, Any]:
    """Return the variables of the callers' code and of the main module, by name."""
    found: dict[str, Any] = {}
    frame: FrameType | None = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        file = frame.f_code.co_filename
        if not (file.startswith(OWN) or is_library(file) or is_stdlib(file)):
            found = read_variables(frame) | found
        frame = frame.f_back
    return {**vars(sys.modules["__main__"]), **found}


def find_on_meta(
    namespace: Mapping[str, object], without: Collection[int] = ()
) -> Iterator[str]:
    """Yield how one writes the modules and tensors that a recording made on meta."""
    if not has_origins():
        return
    known = {*without}
    with DisableTorchFunction():
        for path, found in walk(Variables(namespace)):
            if id(found) in known:
                continue
            known.add(id(found))
            tensors = [found] if isinstance(found, Tensor) else list_tensors(found)
            if any(is_on_meta(tensor) and is_recorded(tensor) for tensor in tensors):
                yield path.removeprefix(".")


def list_tensors(module: nn.Module) -> list[Tensor]:
    """Return the tensors of a module, scripted or not."""
    parts = [part for _, part in walk_modules(module)]
    scripted = [tensor for m in parts for _, _, tensor in list_script_tensors(m)]
    return [*scripted, *(held.tensor for held in find_in_module(module, "", set()))]


def is_recorded(tensor: Tensor) -> bool:
    """Whether a recording made or used a tensor."""
    try:
        parts = list_parts(tensor)
        return any(find_origin(part.untyped_storage()) is not None for part in parts)
    except (RuntimeError, NotImplementedError, ValueError):  # it has no storage
        return bool(is_on_meta(tensor))


def group_targets(held: Sequence[Held], dtype: torch.dtype | None) -> list[Target]:
    """Return the storages of tensors on meta, in the order of their first tensors."""
    targets: dict[int, Target] = {}
    for item in held:
        check_makeable(item)
        for part in list_parts(item.tensor):
            storage = Tensor.untyped_storage(part)
            new = Target(storage, part.itemsize)
            target = targets.setdefault(address_of_storage(storage), new)
            target.held.append(item)
            if not any(part is tensor for tensor in target.tensors):
                target.tensors.append(part)
    for target in targets.values():
        is_cast = any(item.is_cast for item in target.held)
        target.dtype = choose_dtype(target, dtype if is_cast else None)
    return list(targets.values())


def address_of(tensor: Tensor) -> int:
    """Return a number that identifies a tensor's storage; its ``id`` if it has none."""
    tensor = next(iter(list_parts(tensor)), tensor)
    if tensor.layout is not torch.strided or tensor.is_nested:
        return id(tensor)
    return int(address_of_storage(tensor.untyped_storage()))


def check_makeable(item: Held) -> None:
    """Refuse a tensor that torch cannot make from one on meta."""
    for tensor in (item.tensor, *list_parts(item.tensor)):
        why = describe_obstacle(tensor)
        if why:
            raise MaterializeError(
                f"cannot materialize {item.name!r}: {why}. Materialize the other "
                "submodules one by one, or replace it"
            )


def describe_obstacle(tensor: Tensor) -> str:
    """Return why torch cannot make a tensor from one on meta; "" if it can."""
    kind, layout = type(tensor), str(tensor.layout)
    if is_lazy(tensor):
        return "its shape is not known yet: call the module once in the recorded cell"
    if tensor.layout is not torch.strided or tensor.is_nested:
        layout = "nested" if tensor.is_nested else layout
        return f"its layout is {layout}, which torch cannot make from meta"
    is_own = kind.__torch_dispatch__ is not Tensor.__torch_dispatch__
    if is_own and not is_wrapper(tensor):
        return f"it is a {kind.__name__}, and only that class knows its parts"
    if tensor.is_quantized:
        return f"it is quantized ({tensor.dtype}), which torch cannot make from meta"
    return ""


def choose_dtype(target: Target, dtype: torch.dtype | None) -> torch.dtype | None:
    """Return the dtype that a target is cast to, or None."""
    known = {tensor.dtype for tensor in target.tensors}
    wrapped = [h for h in target.held if is_wrapper(h.tensor)]
    can_cast = any(d.is_floating_point or d.is_complex for d in known)
    if dtype is None or not can_cast or known == {dtype}:
        return None
    if wrapped:
        raise MaterializeError(
            f"cannot cast {target.name!r} to {dtype}: it is a "
            f"{type(wrapped[0].tensor).__name__}. Cast the module in the recorded "
            "cell, and leave out dtype="
        )
    if len(known) > 1:
        raise MaterializeError(
            f"cannot cast {target.name!r} to {dtype}: "
            f"{', '.join(h.name for h in target.held)} read one storage as "
            f"{', '.join(map(str, known))}. Leave out dtype="
        )
    is_complex = target.held[0].tensor.is_complex()
    return dtype.to_complex() if is_complex and not dtype.is_complex else dtype


def write_path(modules: Mapping[str, nn.Module], name: str, fqn: str) -> str:
    """Return the Python code of a submodule, such as ``model.layers[0]``."""
    path, written = "", name
    for part in fqn.split("."):
        written += write_step(modules[path], part)
        path = join(path, part)
    return written


def write_step(module: nn.Module, name: str) -> str:
    """Return the code that leads from a module to a child: ``.name`` or ``[0]``."""
    kind = type(module)
    if name.isdecimal() and issubclass(kind, nn.Sequential | nn.ModuleList):
        return f"[{name}]"
    if name.isidentifier() and not iskeyword(name):
        return f".{name}"
    if issubclass(kind, nn.ModuleDict):
        return f"[{name!r}]"
    return f".get_submodule({name!r})"
