"""Find what is used with some tensors and has to become real with them.

Otherwise the next line fails, or does nothing: an optimizer whose momentum is on meta
adds that to a real weight, which torch lets pass without effect. Those are the states
of optimizers, their learning rates, schedulers and scalers; what hooks and the class of
a module hold; gradients; and other tensors on the same storages.
"""

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from types import FunctionType, SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from meta_magic.materializing.install import is_leaf
from meta_magic.materializing.targets import BOOKKEEPING, Held, address_of
from meta_magic.materializing.walk import walk
from meta_magic.recording.identities.living_tensors import find_stored
from meta_magic.recording.identities.origins import find_origin
from meta_magic.session.operand_names import read_attributes
from meta_magic.torch_private.autograd import read_hooks
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.module_internals import list_used_classes
from meta_magic.torch_private.tensor_internals import count_owners

__all__ = [
    "find_companions",
    "find_forgettable",
    "keeps_gradient",
    "list_optimizers",
]

NOT_CAST: Final = "['step']"
"""The state that ``Optimizer.load_state_dict`` does not cast, either."""

WITH_OPTIMIZERS: Final = (LRScheduler, GradScaler)


def find_companions(
    held: Sequence[Held], modules: Iterable[tuple[str, nn.Module]], *, is_cast: bool
) -> list[Held]:
    """Return the tensors on meta that are used with some, and that are none of them.

    Args:
        held: What is made real.
        modules: The modules of that.
        is_cast: Whether it is cast: then what reads its memory otherwise is left out.
    """
    with DisableTorchFunction():
        sharing = [*find_sharing(held, is_cast=is_cast)]
        own = [*held, *sharing]
        known = {id(place.tensor) for place in own}
        found = [*find_states(own), *find_hooked(own, modules), *find_gradients(own)]
        found = [h for h in found if h.tensor.is_meta and id(h.tensor) not in known]
        known |= {id(place.tensor) for place in found}
        beside = find_sharing(found, is_cast=is_cast) if found else ()
        others = (place for place in beside if id(place.tensor) not in known)
        return [*sharing, *found, *others]


def find_gradients(held: Sequence[Held]) -> Iterator[Held]:
    """Yield the gradients of leaves."""
    for place in {id(place.tensor): place for place in reversed(held)}.values():
        tensor = place.tensor
        if tensor.is_meta and is_leaf(tensor) and tensor.grad is not None:
            yield Held(f"{place.name}.grad", "gradient", False, tensor.grad)  # noqa: FBT003


def keeps_gradient(tensor: Tensor) -> bool:
    """Whether a tensor is a leaf of autograd's graph, or was told to retain it."""
    try:
        return tensor.is_leaf or tensor.retains_grad
    except RuntimeError:  # a view whose base was written, in a way that has no gradient
        return False


def list_optimizers(
    parameters: Iterable[Tensor], living: Iterable[Any] | None = None
) -> list[Optimizer]:
    """Return the living optimizers that hold some of these parameters."""
    known = {id(tensor) for tensor in parameters}
    found = find_living() if living is None else living
    optimizers = [one for one in found if isinstance(one, Optimizer)]
    return [o for o in optimizers if any(id(p) in known for p in parameters_of(o))]


def find_forgettable(held: Sequence[Held]) -> list[Held]:
    """Return those of some states that an optimizer makes anew where they are missing.

    Not those of optimizers that make theirs when they are constructed, as Adagrad does.
    """
    known = {
        id(tensor)
        for optimizer in find_living()
        if isinstance(optimizer, Optimizer) and not starts_with_state(type(optimizer))
        for state in read_attributes(optimizer).get("state", {}).values()
        for _, tensor in walk(state)
    }
    return [place for place in held if id(place.tensor) in known]


def starts_with_state(kind: type[Optimizer]) -> bool:
    """Whether optimizers of a class have a state when they are constructed."""
    below = kind.__mro__[: kind.__mro__.index(Optimizer)]
    makers = [vars(base).get("__init__") for base in below]
    codes = [maker.__code__ for maker in makers if isinstance(maker, FunctionType)]
    return any("state" in code.co_names for code in codes)


def find_living() -> list[Any]:
    """Return the living optimizers, and what is used with them."""
    kinds = list_used_classes()
    if not kinds:
        return []
    objects = gc.get_objects()
    types = set(map(type, objects))
    wanted = kinds | {kind for kind in types if issubclass(kind, WITH_OPTIMIZERS)}
    return [*compress(objects, map(wanted.__contains__, map(type, objects)))]


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield all that an optimizer is to change."""
    for group in read_attributes(optimizer).get("param_groups", ()):
        yield from group["params"]


def find_states(held: Sequence[Held]) -> Iterator[Held]:
    """Yield what optimizers hold for some parameters, and schedulers and scalers."""
    names = {id(place.tensor): place.name for place in reversed(held)}
    living = find_living()
    optimizers = list_optimizers((place.tensor for place in held), living)
    seen = {id(optimizer) for optimizer in optimizers}
    for optimizer in optimizers:
        yield from read_optimizer(optimizer, names)
    others = [o for o in living if isinstance(o, Optimizer) and id(o) not in seen]
    taken = {program_of(p) for o in others for p in parameters_of(o) if p.is_meta}
    for one in living if optimizers else ():
        is_of_one = id(read_attributes(one).get("optimizer")) in seen
        is_free = isinstance(one, GradScaler) and not taken & programs_of(one)
        if is_of_one or is_free:
            yield from describe(one, type(one).__name__, seen)


def programs_of(value: object) -> set[int]:
    """Return which recordings made the tensors on meta that a value holds."""
    tensors = (one for _, one in walk(value) if isinstance(one, Tensor))
    return {program_of(tensor) for tensor in tensors if tensor.is_meta}


def program_of(tensor: Tensor) -> int:
    """Return the ``id`` of the latest recording that met a tensor; 0 for none."""
    if tensor.layout is not torch.strided:
        return 0
    found = find_origin(tensor.untyped_storage())
    return 0 if found is None else id(found[0].program)


def read_optimizer(optimizer: Optimizer, names: Mapping[int, str]) -> Iterator[Held]:
    """Yield what an optimizer holds for some parameters, by their names.

    Other parameters, and what it holds for these, are left out.
    """
    kind, attributes = type(optimizer).__name__, read_attributes(optimizer)
    state = attributes.get("state", {})
    rest = {name: held for name, held in attributes.items() if name != "state"}
    others = {id(parameter) for parameter in parameters_of(optimizer)}
    for place in describe(SimpleNamespace(**rest), kind):
        if id(place.tensor) not in others:
            yield place
    for key, held in state.items():
        if not isinstance(key, Tensor):
            yield from describe(held, f"{kind}.state[{key!r}]")
        elif id(key) in names:
            for place in describe(held, f"{kind}.state[{names[id(key)]}]"):
                is_cast = key.is_floating_point() and not place.name.endswith(NOT_CAST)
                yield place._replace(is_cast=is_cast)


def describe(
    value: object, path: str, seen: set[int] | None = None, kind: str = "state"
) -> Iterator[Held]:
    """Yield the tensors in a value.

    Args:
        value: What holds them.
        path: How it is written.
        seen: The ``id`` of what is not looked into; takes what is now.
        kind: What they are.
    """
    owner = path.partition(".")[0]
    for name, tensor in walk(value, path, seen):
        if isinstance(tensor, Tensor):
            yield Held(name, kind, False, tensor, owner, is_cast=False)  # noqa: FBT003


def find_hooked(
    held: Sequence[Held], modules: Iterable[tuple[str, nn.Module]]
) -> Iterator[Held]:
    """Yield what hooks hold, and what the functions of a module's class do."""
    kinds: dict[type, None] = {}
    for fqn, module in modules:
        kinds |= dict.fromkeys(type(module).__mro__)
        own = module.__dict__
        hooks = [own[n] for n in BOOKKEEPING if n.endswith("hooks") and own.get(n)]
        yield from describe_hooks(hooks, fqn)
    for place in held:
        yield from describe_hooks(
            [h for h in read_hooks(place.tensor) if h], place.name
        )
    for kind in kinds:
        if not kind.__module__.startswith("torch.") and kind is not object:
            own = {k: v for k, v in vars(kind).items() if k[:2] != "__"}
            yield from describe(SimpleNamespace(**own), kind.__name__, kind="attribute")


def describe_hooks(hooks: Sequence[object], name: str) -> Iterator[Held]:
    """Yield what the hooks of a module or tensor hold."""
    of = f"hook of {name}" if name else "hook"
    for place in describe(hooks, "", kind="attribute"):
        end = place.name.rpartition("]")[2] or place.name
        yield place._replace(name=f"{of}{end}")


def find_sharing(held: Sequence[Held], *, is_cast: bool) -> Iterator[Held]:
    """Yield other tensors that lie on the storages of some, whoever holds them."""
    first: dict[int, Held] = {}
    known: dict[int, set[int]] = {}
    for place in held:
        if place.tensor.is_meta:
            address = address_of(place.tensor)
            first.setdefault(address, place)
            known.setdefault(address, set()).add(id(place.tensor))
    dense = [a for a, h in first.items() if h.tensor.layout is torch.strided]
    shared = {a for a in dense if count_owners(a) > len(known[a])}
    for tensor, address in find_stored() if shared else ():
        if address in shared and id(tensor) not in known[address]:
            place = first[address]
            if not is_cast or tensor.dtype == place.tensor.dtype:
                name = f"alias of {place.name}"
                yield Held(name, "alias", False, tensor)  # noqa: FBT003
