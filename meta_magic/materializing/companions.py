"""Find the tensors that must become real together with those of a module.

Otherwise the user's next line fails, or does nothing: states of optimizers, their
learning rates, schedulers and scalers; tensors that hooks, the module's class and
caches of functions hold; gradients; and other tensors on the same storages. Read
``find_companions`` first.
"""

import gc
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from types import FunctionType, SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from meta_magic.materializing.targets import (
    BOOKKEEPING,
    Held,
    address_of,
    is_recorded,
    walk,
)
from meta_magic.recording.identities.origins import (
    find_live,
    find_origin,
    find_stored,
    is_tensor_class,
    list_recorded,
)
from meta_magic.recording.identities.tensors import tensors_in
from meta_magic.session.operand_names import read_attributes
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.tensor_internals import (
    base_of,
    count_owners,
    list_parts,
    read_hooks,
)

# The state that ``Optimizer.load_state_dict`` does not cast, either.
NOT_CAST: Final = "['step']"

CACHED: Final = type(cache(lambda: None))

WITHOUT_CACHES: Final = sys.stdlib_module_names | {"torch"}

TRAINING: Final = (Optimizer, LRScheduler, GradScaler)


class LiveObjects:
    """The objects of the process that hold or share tensors, searched at most once.

    Not at all while the holder of each live tensor of a recording is known: no
    optimizer and no cache then holds one. A search takes 35 ms.
    """

    def __init__(self, known: Iterable[Held]) -> None:
        parts = (part for item in known for part in list_parts(item.tensor))
        self._has_others = not list_recorded() <= {*map(address_of, parts)}

    @cached_property
    def all(self) -> list[Any]:
        """All tensors, caches, optimizers, schedulers and scalers."""
        return find_live(is_holder)

    @property
    def holders(self) -> list[Any]:
        """Those that may hold a tensor of a recording whose holder is not known."""
        return self.all if self._has_others else []


def is_holder(kind: type) -> bool:
    """Whether objects of a class hold or share tensors outside of a module."""
    return kind is CACHED or is_tensor_class(kind) or issubclass(kind, TRAINING)


def find_companions(
    held: Sequence[Held],
    modules: Sequence[tuple[str, nn.Module]],
    seen: set[int],
    *,
    is_cast: bool,
) -> list[Held]:
    """Return the tensors on meta that are used with ``held``, and are not there.

    ``seen`` has the objects that were searched for ``held``.
    """
    with DisableTorchFunction():
        beside = [*find_hooked(held, modules, seen), *find_gradients(held)]
        live = LiveObjects([*held, *beside])
        sharing = [*find_sharing(held, beside, live, is_cast=is_cast)]
        own = [*held, *sharing]
        known = {id(item.tensor) for item in own}
        found = [*find_states(own, live.holders), *beside, *find_gradients(sharing)]
        found += [*find_hooked(sharing, (), set()), *find_cached(modules, live.holders)]
        found = [h for h in found if h.tensor.is_meta and id(h.tensor) not in known]
        known |= {id(item.tensor) for item in found}
        others = find_sharing(found, (), live, is_cast=is_cast)
        return [*sharing, *found, *(h for h in others if id(h.tensor) not in known)]


def find_gradients(held: Sequence[Held]) -> Iterator[Held]:
    """Yield the gradients of leaves."""
    for item in {id(item.tensor): item for item in reversed(held)}.values():
        tensor = item.tensor
        if tensor.is_meta and is_leaf(tensor) and tensor.grad is not None:
            yield Held(f"{item.name}.grad", "gradient", tensor.grad)


def is_leaf(tensor: Tensor) -> bool:
    """Whether a tensor is a leaf of autograd's graph."""
    try:
        return tensor.is_leaf
    except RuntimeError:  # a view whose base was written, in a way without gradient
        return False


def keeps_gradient(tensor: Tensor) -> bool:
    """Whether a tensor is a leaf of autograd's graph, or retains its gradient."""
    try:
        return tensor.is_leaf or tensor.retains_grad
    except RuntimeError:  # as above
        return False


def list_optimizers(
    parameters: Iterable[Tensor], live: Iterable[object]
) -> list[Optimizer]:
    """Return those optimizers of some objects that hold some of these parameters."""
    known = {id(tensor) for tensor in parameters}
    optimizers = [one for one in live if isinstance(one, Optimizer)]
    return [o for o in optimizers if any(id(p) in known for p in optimized_by(o))]


def optimized_by(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield the parameters of an optimizer."""
    for group in read_attributes(optimizer).get("param_groups", ()):
        yield from group["params"]


def find_clearable_states(held: Sequence[Held]) -> list[Held]:
    """Return the optimizer states that the next step makes anew if they are missing.

    Optimizers that make theirs in the constructor, as Adagrad does, are left out.
    """
    known = {
        id(tensor)
        for optimizer in (find_live(is_optimizer_class) if held else ())
        if not starts_with_state(type(optimizer))
        for state in read_attributes(optimizer).get("state", {}).values()
        for _, tensor in walk(state)
    }
    return [item for item in held if id(item.tensor) in known]


def is_optimizer_class(kind: type) -> bool:
    """Whether objects of a class are optimizers."""
    return issubclass(kind, Optimizer)


def starts_with_state(kind: type[Optimizer]) -> bool:
    """Whether the constructor of an optimizer's class uses ``state``."""
    below = kind.__mro__[: kind.__mro__.index(Optimizer)]
    makers = [vars(base).get("__init__") for base in below]
    codes = [maker.__code__ for maker in makers if isinstance(maker, FunctionType)]
    return any("state" in code.co_names for code in codes)


def clear_states(held: Sequence[Held], cleared: Sequence[Held]) -> Iterator[str]:
    """Clear the states that optimizers keep for parameters; yield a note for each."""
    ids = {id(item.tensor) for item in cleared}
    live = find_live(is_optimizer_class) if ids else ()
    for optimizer in list_optimizers((item.tensor for item in held), live):
        state: dict[object, object] = read_attributes(optimizer)["state"]
        keys = [k for k, v in state.items() if any(id(t) in ids for _, t in walk(v))]
        for key in keys:
            del state[key]
        if keys:
            yield (
                f"the state of {type(optimizer).__name__} was cleared: its steps made "
                "it for other values of the parameters"
            )


def find_states(held: Sequence[Held], live: Sequence[object]) -> Iterator[Held]:
    """Yield the states that optimizers, schedulers and scalers hold for parameters."""
    names = {id(item.tensor): item.name for item in reversed(held)}
    live = [one for one in live if issubclass(type(one), TRAINING)]
    optimizers = list_optimizers((item.tensor for item in held), live)
    seen = {id(optimizer) for optimizer in optimizers}
    for optimizer in optimizers:
        yield from read_optimizer(optimizer, names)
    # A scaler does not know its optimizer. It goes with these unless a recording made
    # both the scaler's tensors and the parameters of another optimizer.
    others = [o for o in live if isinstance(o, Optimizer) and id(o) not in seen]
    taken = {id_of_recording(p) for o in others for p in optimized_by(o) if p.is_meta}
    for one in live if optimizers else ():
        is_of_one = id(read_attributes(one).get("optimizer")) in seen
        is_free = isinstance(one, GradScaler) and not taken & {
            id_of_recording(tensor)
            for _, tensor in walk(one)
            if isinstance(tensor, Tensor) and tensor.is_meta
        }
        if is_of_one or is_free:
            yield from describe_held(one, type(one).__name__, seen)


def id_of_recording(tensor: Tensor) -> int:
    """Return the ``id`` of the latest recording that used a tensor; 0 for none."""
    if tensor.layout is not torch.strided:
        return 0
    found = find_origin(list_parts(tensor)[0].untyped_storage())
    return 0 if found is None else id(found[0].program)


def read_optimizer(optimizer: Optimizer, names: Mapping[int, str]) -> Iterator[Held]:
    """Yield the state of an optimizer for the parameters with names, and its own."""
    kind, attributes = type(optimizer).__name__, read_attributes(optimizer)
    state = attributes.get("state", {})
    rest = {name: held for name, held in attributes.items() if name != "state"}
    others = {id(parameter) for parameter in optimized_by(optimizer)}
    for item in describe_held(SimpleNamespace(**rest), kind):
        if id(item.tensor) not in others:
            yield item
    for key, held in state.items():
        if not isinstance(key, Tensor):
            yield from describe_held(held, f"{kind}.state[{key!r}]")
        elif id(key) in names:
            for item in describe_held(held, f"{kind}.state[{names[id(key)]}]"):
                is_cast = key.is_floating_point() and not item.name.endswith(NOT_CAST)
                yield item._replace(is_cast=is_cast)


def describe_held(
    value: object, path: str, seen: set[int] | None = None, kind: str = "state"
) -> Iterator[Held]:
    """Yield the tensors in a value that is written ``path``, and is not in ``seen``."""
    owner = path.partition(".")[0]
    for name, tensor in walk(value, path, seen):
        if isinstance(tensor, Tensor):
            yield Held(name, kind, tensor, owner=owner, is_cast=False)


def find_hooked(
    held: Sequence[Held], modules: Iterable[tuple[str, nn.Module]], seen: set[int]
) -> Iterator[Held]:
    """Yield the tensors of hooks, and of the attributes of the modules' classes.

    Not of what was ``seen``: all hooks of ``fully_shard`` hold its whole state.
    """
    kinds: dict[type, None] = {}
    hooked: list[tuple[list[object], str]] = []
    for fqn, module in modules:
        kinds |= dict.fromkeys(type(module).__mro__)
        own = module.__dict__
        names = [n for n in BOOKKEEPING if n.endswith("hooks") and own.get(n)]
        hooked.append(([own[name] for name in names], fqn))
    hooked += [([*filter(None, read_hooks(h.tensor))], h.name) for h in held]
    for hooks, name in hooked:
        yield from describe_hooks(hooks, name, seen)
    for kind in kinds:
        if not kind.__module__.startswith("torch.") and kind is not object:
            own = {k: v for k, v in vars(kind).items() if k[:2] != "__"}
            class_held = SimpleNamespace(**own)
            yield from describe_held(class_held, kind.__name__, kind="attribute")


def find_cached(
    modules: Iterable[tuple[str, nn.Module]], live: Sequence[object] | None = None
) -> Iterator[Held]:
    """Yield the tensors of recordings that caches keep for the next call of a module.

    An example is a rotary embedding's table. The caches are the results that
    ``functools.cache`` keeps, and dictionaries and lists of the Python modules that
    define the classes. ``live`` are objects to search; by default all are.
    """
    live = find_live(is_holder) if live is None else live
    if not live:
        return
    names = {kind.__module__ for _, one in modules for kind in type(one).__mro__}
    for name in sorted(names - {"__main__"}):
        if name.partition(".")[0] not in WITHOUT_CACHES and name in sys.modules:
            own = vars(sys.modules[name]).items()
            kept = {k: v for k, v in own if type(v) in (dict, list) and tensors_in(v)}
            for item in describe_held(SimpleNamespace(**kept), name, kind="attribute"):
                if item.tensor.is_meta and is_recorded(item.tensor):
                    yield item
    for cached in find_caches(live):
        about = vars(cached)
        held = gc.get_referents(cached)
        results = [kept for kept in held if kept is not about and tensors_in(kept)]
        for item in describe_held(results, "", kind="attribute"):
            if item.tensor.is_meta and is_recorded(item.tensor):
                yield item._replace(name=f"{cached.__qualname__}(...)")


def find_caches(live: Iterable[object]) -> list[Any]:
    """Return the functions with a cache of ``functools`` that is not empty."""
    found: Iterable[Any] = (one for one in live if type(one) is CACHED)
    return [
        one
        for one in found
        if str(one.__module__).partition(".")[0] not in WITHOUT_CACHES
        and one.cache_info().currsize
    ]


def describe_hooks(
    hooks: Sequence[object], name: str, seen: set[int]
) -> Iterator[Held]:
    """Yield the tensors that the hooks of a module or tensor hold."""
    of = f"hook of {name}" if name else "hook"
    for item in describe_held(hooks, "", seen, kind="attribute"):
        end = item.name.rpartition("]")[2] or item.name
        yield item._replace(name=f"{of}{end}")


def find_sharing(
    held: Sequence[Held], beside: Iterable[Held], live: LiveObjects, *, is_cast: bool
) -> Iterator[Held]:
    """Yield other tensors that share a storage with one of ``held``.

    Those of ``beside`` and the bases of views first: if they are all, none is searched.
    """
    first: dict[int, Held] = {}
    known: dict[int, set[int]] = {}
    pairs = [(item, part) for item in held for part in list_parts(item.tensor)]
    for item, part in pairs:
        if part.is_meta:
            address = address_of(part)
            first.setdefault(address, item)
            known.setdefault(address, set()).add(id(part))
    shared = {a for a, h in first.items() if h.tensor.layout is torch.strided}

    def name_aliases(objects: Iterable[object]) -> Iterator[Held]:
        for tensor, address in find_stored(objects):
            if address in shared and id(tensor) not in known[address]:
                item = first[address]
                known[address].add(id(tensor))
                if not is_cast or tensor.dtype == item.tensor.dtype:
                    yield Held(f"alias of {item.name}", "alias", tensor)

    near = [part for item in (*held, *beside) for part in list_parts(item.tensor)]
    yield from name_aliases([*near, *map(base_of, near)])
    shared = {a for a in shared if count_owners(a) > len(known[a])}
    yield from name_aliases(live.all if shared else ())
