"""Write real values in ``torch.save``, and put what ``torch.load`` reads on meta.

Tensors on meta have no bytes. Pickle first runs without writing, to find all tensors.
Their values are computed together; in the second run a real tensor replaces each.
Tensors that share a storage share it again, so ties survive loading.

``torch.load``, ``torch.from_numpy`` and memory-mapped files make tensors that no mode
of torch sees (``DataSources``). ``torch.load`` asks for the device of each storage, so
``map_location`` holds.
"""

import contextlib
import inspect
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from os import PathLike
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

import numpy as np
import psutil
import torch
from torch import Tensor, nn, serialization
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader

from meta_magic.errors import MissingValueError
from meta_magic.recording.identities.device_plan import is_default_on_meta
from meta_magic.recording.identities.tensors import tensors_of
from meta_magic.recording.intercept.higher_order import make_below
from meta_magic.recording.intercept.moves import find_copied, is_copying
from meta_magic.recording.intercept.real_tensors.borrowed_modules import BorrowedModules
from meta_magic.recording.intercept.real_tensors.capturable import find_address
from meta_magic.recording.intercept.real_tensors.captured_constants import (
    ConstantCapture,
)
from meta_magic.recording.intercept.reported_devices import find_writers
from meta_magic.recording.intercept.shared_memory import SharedMemory
from meta_magic.recording.intercept.value_checks import ValueSource
from meta_magic.recording.rows.writers import RecordingReplacements, Writers
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.torch_private.module_internals import list_script_tensors
from meta_magic.torch_private.snapshot import WithoutModes
from meta_magic.torch_private.tensor_internals import (
    REBUILD,
    REDUCE,
    address_of_storage,
    parts_of,
    type_storage,
    untyped_of,
)
from meta_magic.trace.signature import META
from meta_magic.trace.units import format_bytes

Reduce: TypeAlias = Callable[[object], Any]
"""Returns how to reduce an object; ``NotImplemented`` to let pickle do it."""

PROTOCOL: Final = 2
EMPTY: Final = (int, ())  # the reduction of an object whose content does not matter

ADVICE: Final = (
    "Save after the cell, when meta_magic.materialize has made the module real, or "
    "allow more (--value-nbytes, --value-seconds, record(limits=))"
)


CONSTANT: Final = "prim::Constant"
FROZEN: Final = (
    "torch.jit.save cannot write what torch.jit.freeze made constants of, on meta: "
    "freeze after the cell, when meta_magic.materialize has made the module real, or "
    "save before it is frozen."
)

NOT_WRITTEN: Final = "no file is written: {}"
"""A plan of several ranks goes on when a script saves what this process cannot know."""


class Saver:
    """Saves the meta tensors of a cell with real values.

    In a world a file that cannot be right is left out with a note (``unwritten``), as
    the script is recorded for several ranks; ``on_unwritten`` is called with its path
    and what ``torch.save`` was to write. Where ``write_blank`` is set, it is called
    instead, with the file.
    """

    def __init__(
        self, write: Writers, values: ValueSource, *, in_world: bool = False
    ) -> None:
        self._registry, self.note = write.registry, write.note
        self._in_world = in_world
        self._values = values
        self.saved: list[Path] = []
        self.unwritten: list[Path] = []
        self.on_unwritten: Callable[[Path, object], object] = lambda *_: None
        self.write_blank: Callable[[Any, object], None] | None = None

    def leave_out(self, file: Any, error: Exception, value: object = None) -> None:
        """Note that a file is left out; raise the error where that is impossible."""
        if self.write_blank is not None:
            self.write_blank(file, value)
            return
        is_path = isinstance(file, (str, PathLike))
        path = file if is_path else getattr(file, "name", None)
        if not (self._in_world and isinstance(path, (str, PathLike))):
            raise error
        self.unwritten.append(Path(path).resolve())
        self.on_unwritten(self.unwritten[-1], value)
        self.note("save", NOT_WRITTEN.format(error))

    def save(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        """Call ``torch.save`` with real tensors instead of those on meta."""
        try:
            given = inspect.signature(plain).bind(*args, **kwargs)
        except TypeError:
            return plain(*args, **kwargs)  # which raises the error
        given.apply_defaults()
        module, file = given.arguments["pickle_module"], given.arguments["f"]
        if self._in_world and isinstance(file, (str, PathLike)):
            self.saved.append(Path(file).resolve())
        metas = find_on_meta(given.arguments["obj"], module)
        if not metas:
            return plain(*args, **kwargs)
        try:
            real_by_id = dict(zip(map(id, metas), self.compute(metas), strict=True))
        except MissingValueError as error:
            return self.leave_out(file, error, given.arguments["obj"])

        def reduce(value: object) -> Any:
            real = real_by_id.get(id(value))
            if real is None and is_on_meta(value):  # one that pickle made just now
                (real,) = self.compute([value])
            return NotImplemented if real is None else real.__reduce_ex__(PROTOCOL)

        given.arguments["pickle_module"] = ReducingPickle(module, reduce)
        saved = plain(*given.args, **given.kwargs)
        self.note_saved("torch.save", metas)
        return saved

    def lay_out(self, plain: Any, tensors: Any, *rest: Any) -> Any:
        """Call a function that lays out tensors for a file, with real tensors."""
        held = tensors.values() if isinstance(tensors, dict) else ()
        metas = [t for t in held if is_on_meta(t) and t.layout is torch.strided]
        if not metas:
            return plain(tensors, *rest)
        library = plain.__module__.partition(".")[0]
        try:
            reals = self.compute(metas, library)
        except MissingValueError as error:
            if self._in_world:
                return error
            raise
        real_by_id = dict(zip(map(id, metas), reals, strict=True))
        real = {name: real_by_id.get(id(t), t) for name, t in tensors.items()}
        with WithoutModes():
            laid_out = plain(real, *rest)
        self.note_saved(library, metas)
        return laid_out

    def write_laid_out(self, plain: Any, laid_out: Any, *args: Any, **rest: Any) -> Any:
        """Call a function that writes what was laid out, unless that is an error."""
        if isinstance(laid_out, MissingValueError):
            return self.leave_out(args[0] if args else None, laid_out)
        return plain(laid_out, *args, **rest)

    def save_script(
        self, plain: Callable[..., Any], module: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a function that writes a scripted module, with real tensors in it."""
        if any(map(is_on_meta, find_constants(module))):
            raise MissingValueError(FROZEN)
        parts = chain.from_iterable(map(list_script_tensors, module.modules()))
        held = [part for part in parts if is_on_meta(part[2])]
        tensors = [tensor for *_, tensor in held]
        reals = self.compute(tensors)
        try:
            for (owner, name, _), real in zip(held, reals, strict=True):
                owner.setattr(name, real)
            saved = plain(module, *args, **kwargs)
        finally:
            for owner, name, tensor in held:
                owner.setattr(name, tensor)
        if held:
            self.note_saved("torch.jit.save", tensors)
        return saved

    def note_saved(self, name: str, metas: Sequence[Tensor]) -> None:
        """Note that a function wrote meta tensors as if they were real."""
        with DisableTorchFunction():
            parts = chain.from_iterable(map(parts_of, metas))
            nbytes = sum({id(p.untyped_storage()): p.nbytes for p in parts}.values())
        self.note(
            "save",
            f"{name} wrote {count(metas)} ({format_bytes(nbytes)}) with the values "
            f"that {'it' if len(metas) == 1 else 'they'} would have, on the CPU",
        )

    def compute(
        self, metas: Iterable[Any], name: str = "torch.save", *, can_wait: bool = True
    ) -> list[Tensor]:
        """Return a real tensor for each meta tensor; if it cannot wait, cheap ones."""
        tensors = list(metas)
        with DisableTorchFunction():
            self._registry.note_deaths()
            chosen = [(tensor, self._registry.read(tensor)) for tensor in tensors]
        strange = next((t for t, seen in chosen if seen[1] is None), None)
        if strange is not None:
            raise MissingValueError(
                f"{name} cannot write a tensor on meta of layout {strange.layout}, "
                f"which has no values. {ADVICE}."
            )
        if can_wait:
            self._values.check_saved(chosen, name)
        try:
            reals = self._values.read(chosen, can_wait=can_wait)
        except MissingValueError as error:
            raise type(error)(
                f"{name} needs the values of {count(tensors)} on meta: "
                f"{error}. {ADVICE}."
            ) from None
        with DisableTorchFunction():
            return [*map(match_class, reals, tensors)]


class ReducingPickle:
    """A module such as ``pickle``, whose pickler calls ``reduce`` for each object."""

    def __init__(self, module: Any, reduce: Reduce) -> None:
        self._module = module

        class Pickler(module.Pickler):  # type: ignore[misc]  # the user's choice
            def reducer_override(self, value: object) -> Any:
                reduced = reduce(value)
                above = getattr(super(), "reducer_override", None)
                if reduced is NotImplemented and above is not None:
                    return above(value)
                return reduced

        self.Pickler = Pickler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


NULL_FILE: Final = SimpleNamespace(write=len)  # it keeps nothing of what is written


def find_on_meta(value: object, module: Any = pickle) -> list[Tensor]:
    """Return the tensors on meta that would be pickled, each once."""
    found: dict[int, Any] = {}

    def note(part: object) -> Any:
        if is_on_meta(part):
            found[id(part)] = part
        is_data = isinstance(part, (torch.UntypedStorage, torch.TypedStorage))
        return EMPTY if id(part) in found or is_data else NotImplemented

    ReducingPickle(module, note).Pickler(NULL_FILE, PROTOCOL).dump(value)
    return list(found.values())


def count(tensors: Sequence[Tensor]) -> str:
    """Return the text for a number of tensors."""
    return f"{len(tensors):,} tensor{'' if len(tensors) == 1 else 's'}"


def is_on_meta(value: Any) -> bool:
    """Whether a value is a tensor on meta, and is not pickled as its parts."""
    with DisableTorchFunction():
        return (
            isinstance(value, Tensor)
            and value.is_meta
            and type(value).__torch_dispatch__ is Tensor.__torch_dispatch__
            and not is_lazy(value)
        )


def match_class(real: Tensor, tensor: Tensor) -> Tensor:
    """Return a real tensor with the class and the attributes of another one."""
    if isinstance(tensor, nn.Parameter):
        real = nn.Parameter(real, requires_grad=tensor.requires_grad)
    elif type(tensor) is not Tensor:
        real = real.as_subclass(type(tensor))
    real.requires_grad_(tensor.requires_grad)
    real.__dict__.update(tensor.__dict__)
    return real


def find_constants(module: Any) -> Iterator[Tensor]:
    """Yield the constants in the code of a scripted module that are tensors."""
    if not hasattr(module, "forward"):
        return
    graph = module.inlined_graph  # it must outlive its nodes
    for node in graph.findAllNodes(CONSTANT):
        if node.hasAttribute("value") and node.kindOf("value") == "t":
            yield node.t("value")


SCRIPTED: Final[Any] = torch.jit.RecursiveScriptModule  # type: ignore[attr-defined]  # not in its __all__

PICKLED: Final = "pickle wrote tensors with the values that they would have, on the CPU"


class DataSources(RecordingReplacements):
    """Context manager that replaces the functions by which data comes into a cell."""

    def __init__(
        self,
        write: Writers,
        saver: Saver,
        loader: "Loader",
        shared: SharedMemory,
        capture: ConstantCapture,
    ) -> None:
        super().__init__(write)
        self._capture = capture
        self._loader = loader
        self._saver = saver
        self._shared = shared

    def __enter__(self) -> None:
        methods = {
            "load": self._load,
            "save": self._saver.save,
            "from_numpy": self._adopt,
            "frombuffer": self._adopt,
        }
        self.replace_here(torch, methods)
        for (owner, name), method in ((REDUCE, self._reduce), (REBUILD, self._rebuild)):
            self.replace_here(owner, {name: method})
        for module in (torch, torch.utils.dlpack):
            packing = {"from_dlpack": self._adopt, "to_dlpack": self._export}
            self.replace_here(module, packing)
        names = "save", "save_to_buffer"
        self.replace_here(SCRIPTED, dict.fromkeys(names, self._saver.save_script))
        writers = find_writers()
        if writers is not None:
            module, lay_out, write = writers
            self.replace_here(module, dict.fromkeys(lay_out, self._saver.lay_out))
            self.replace_here(module, dict.fromkeys(write, self._saver.write_laid_out))
        self.replace_here(DataLoader, {"__iter__": self._iterate})
        restore = {"default_restore_location": self._loader.restore}
        self.replace_here(serialization, restore)

    def _load(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        if is_default_on_meta():
            return self._loader.load(plain, *args, **kwargs)
        with WithoutModes():
            return plain(*args, **kwargs)

    def _adopt(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        """Put tensors on meta that torch makes from foreign memory."""
        data = args[0] if args else None
        if not is_default_on_meta():
            return plain(*args, **kwargs)
        if isinstance(data, Tensor) and data.is_meta:  # by from_dlpack
            return self._shared.share_again(data)

        def adopt(*args: Any) -> Tensor:
            real: Tensor = plain(*args, **kwargs)
            planned = self._shared.find_planned(real)
            if planned is not None:
                return planned
            with DisableTorchFunction():  # it is made here, not moved from the CPU
                planned = real.to(META)
            if isinstance(data, np.ndarray):
                with DisableTorchDispatch():  # which would put it on meta
                    planned = self._shared.adopt(data, plain(*args, **kwargs), planned)
            return planned

        return make_below(adopt, args)

    def _export(self, plain: Any, tensor: Any) -> Any:
        """Export the memory of a tensor as a DLPack capsule."""
        is_planned = is_default_on_meta() and is_on_meta(tensor)
        give = self._shared.give
        return give(plain, (tensor,), {}) if is_planned else plain(tensor)

    def _reduce(self, plain: Any, tensor: Tensor, protocol: int) -> Any:
        """Return how a tensor is pickled: with its values, if they can be computed."""
        if is_on_meta(tensor) and not is_copying(sys._getframe(1)):
            with contextlib.suppress(MissingValueError):
                (tensor,) = self._saver.compute([tensor])
                self._note("save", PICKLED)
        return plain(tensor, protocol)

    def _rebuild(self, plain: Any, storage: Any, *geometry: Any) -> Any:
        """Put an unpickled tensor on meta: its values are constants."""
        if is_default_on_meta() and find_copied(sys._getframe(1)) is None:
            planned = self._capture.capture_storage(untyped_of(storage))
            storage = type_storage(planned, storage.dtype)
        return plain(storage, *geometry)

    def _iterate(self, plain: Any, loader: Any) -> Any:
        """Load in this process: other processes are not recorded."""
        n_workers, timeout = loader.num_workers, loader.timeout
        if not n_workers:
            return plain(loader)
        self._note(
            "workers",
            "DataLoader loaded in this process, so that it is recorded, not with "
            f"num_workers={n_workers} (see num_workers=0)",
        )
        loader.num_workers = loader.timeout = 0
        try:
            return plain(loader)
        finally:
            loader.num_workers, loader.timeout = n_workers, timeout


UNREAD: Final = (
    "torch.load read shapes and no data, as the file is larger than the free memory "
    "(see the file as init= of meta_magic.materialize)"
)


class Loader:
    """Loads files onto meta."""

    def __init__(self, write: Writers, borrowed: BorrowedModules) -> None:
        self._note, self._plan = write.note, write.plan
        self._borrowed = borrowed
        self._placement_by_address: dict[int | None, torch.device] | None = None

    def load(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        """Call ``torch.load`` where a factory would build on meta."""
        location = args[1] if len(args) > 1 else kwargs.get("map_location")
        if location is None and is_too_large(args[0] if args else kwargs.get("f")):
            args, kwargs["map_location"] = args[:1], "meta"
            self._note("load", UNREAD)
        placements = self._placement_by_address = {}
        try:
            with WithoutModes():
                loaded = plain(*args, **kwargs)
        finally:
            self._placement_by_address = None
        with DisableTorchFunction():
            for tensor, is_of_module in find_tensors(loaded):
                placement = placements.get(find_address(tensor))
                if placement is None and (location is None or is_of_module):
                    placement = META if location is None else tensor.device
                if placement is not None:
                    self._borrowed.move_for_good(tensor, placement)
        return loaded

    def restore(self, plain: Any, storage: Any, location: str) -> Any:
        """Return a file's storage for a location, and note its planned device."""
        placements, kind = self._placement_by_address, location.partition(":")[0]
        if placements is None or kind in ("cpu", "meta") or self._plan.is_real:
            return plain(storage, location)
        placements[address_of_storage(storage)] = self._plan.read(location)
        return storage


def is_too_large(file: object) -> bool:
    """Whether a file is larger than the free memory."""
    if not isinstance(file, (str, PathLike)) or not Path(file).exists():
        return False
    return Path(file).stat().st_size > psutil.virtual_memory().available


def find_tensors(value: object) -> Iterator[tuple[Tensor, bool]]:
    """Yield the tensors in a loaded object, and whether each belongs to a module."""
    if isinstance(value, Tensor):
        yield value, False
    elif isinstance(value, nn.Module):
        for tensor in tensors_of(value):
            yield tensor, True
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from find_tensors(item)
