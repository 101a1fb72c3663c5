"""Generators of a GPU that is planned: what they draw is a plan, too."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.recording.identities.device_plan import DevicePlan
from meta_magic.recording.identities.generator_carryover import name_generator, place_of
from meta_magic.recording.intercept.planned.gpu_types import (
    do_nothing,
    find_index,
    find_plan,
)
from meta_magic.recording.rows.draws import Draws
from meta_magic.recording.rows.generator_tokens import ELSEWHERE
from meta_magic.torch_private.backend_flags import has_gpu
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.torch_private.replaced import Replaceable
from meta_magic.torch_private.replacing import Replacements

PLAIN = torch.Generator


class GeneratorKind(type(torch.Generator)):  # type: ignore[misc]  # torch has one of its own
    """Has all generators be of the kind that stands for theirs."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, PLAIN)


class Generator(torch.Generator, metaclass=GeneratorKind):
    """A generator; one for a device that is not there is one of the CPU's.

    Args:
        device: As torch takes it.
    """

    def __new__(cls, device: Any = "cpu") -> Any:
        """Make torch's own, or one that draws on the CPU and says what it stands for.

        Torch's own, if it can: of another one torch's C++ asks Python what it is, and
        takes an interrupt then for an answer.
        """
        plan = find_plan()
        place = torch.device(device) if plan is None else plan.read(device)
        if is_there(place):
            return PLAIN(place)
        if place.type in ("cpu", "meta"):
            return PLAIN("cpu")
        make: Any = super().__new__
        made = make(cls, "cpu")
        name_generator(made, place)
        return made

    __module__ = "torch"

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # torch has an attribute
        """Where it is to draw."""
        return place_of(self)


def is_there(place: torch.device) -> bool:
    """Whether this machine has a device."""
    is_known = place.type == "cuda" and has_gpu()
    return is_known and place.index < torch.cuda.device_count()


class PlannedGenerators(Replacements):
    """Have ``torch.Generator`` take a device that is not there, within the block.

    Args:
        plan: Knows where the code wants what.
    """

    def __init__(self, plan: DevicePlan) -> None:
        super().__init__()
        self._plan = plan

    def __enter__(self) -> None:
        if not self._plan.is_real:
            self.replace(torch, "Generator", Generator)


KIND_BY_SEEDING: Final[dict[Replaceable, str]] = {
    (torch.cuda, "manual_seed_all"): "cuda",
    (torch.xpu, "manual_seed_all"): "xpu",
    (torch.mps, "manual_seed"): "mps",
    (torch.mtia, "manual_seed_all"): "mtia",
}
"""What ``torch.manual_seed`` calls, and the kind of device that it seeds."""


class SeededDevices(Replacements):
    """Have what seeds all devices seed those of a plan as well, within the block.

    Args:
        plan: Knows what a named device means.
        draws: Knows the generators of devices that are not there.
    """

    def __init__(self, plan: DevicePlan, draws: Draws) -> None:
        super().__init__()
        self._plan = plan
        self._draws = draws

    def __enter__(self) -> None:
        if not self._plan.is_real:
            for (owner, name), kind in KIND_BY_SEEDING.items():
                self.replace_here(owner, {name: partial(self._seed, kind)})

    def _seed(self, kind: str, plain: Callable[[int], None], seed: int) -> None:
        plain(seed)
        self._draws.seed_elsewhere(kind, int(seed))


class PlannedSeeds:
    """Answers for ``torch.cuda.manual_seed`` and what else is about generators.

    Args:
        plan: Knows how many GPUs there are.
        draws: Knows the generators of devices that are not there.
    """

    def __init__(self, plan: DevicePlan, draws: Draws) -> None:
        self._plan = plan
        self._draws = draws

    def list_answers(self) -> dict[str, Callable[..., Any]]:
        """Return what stands for each function, by its name."""
        return {
            "manual_seed": self._seed,
            "manual_seed_all": do_nothing,
            "initial_seed": lambda: self._find().initial_seed() ^ ELSEWHERE,
            "get_rng_state": self._get,
            "set_rng_state": self._set,
            "get_rng_state_all": lambda: [self._get(i) for i in self._list_indices()],
            "set_rng_state_all": self._set_all,
        }

    def _list_indices(self) -> range:
        return range(self._plan.n_accelerators or 1)

    def _read(self, device: Any = None) -> torch.device:
        is_named = device not in ("cuda", None)
        index = find_index(self._plan, device if is_named else None)
        return torch.device("cuda", index)

    def _find(self, device: Any = None) -> torch.Generator:
        return self._draws.generator_at(self._read(device))

    def _seed(self, seed: int) -> None:
        self._draws.seed_at(self._read(), int(seed))

    def _get(self, device: Any = None) -> Tensor:
        with DisableTorchFunction(), DisableTorchDispatch():
            return self._find(device).get_state()

    def _set(self, state: Tensor, device: Any = None) -> None:
        with DisableTorchFunction(), DisableTorchDispatch():
            self._find(device).set_state(state)

    def _set_all(self, states: Iterable[Tensor]) -> None:
        for index, state in enumerate(states):
            self._set(state, index)
