"""Generators of planned devices, their seeds and their states.

Without this ``torch.Generator("cuda")`` would fail without a GPU. A generator of a
planned device draws on the CPU, and ``generator.device`` returns the planned device.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.recording.identities.device_plan import DevicePlan
from meta_magic.recording.identities.generator_carryover import (
    name_generator,
    planned_device_of,
)
from meta_magic.recording.intercept.planned.gpu_types import (
    do_nothing,
    find_index,
    find_plan,
)
from meta_magic.recording.rows.draws import ELSEWHERE, Draws
from meta_magic.torch_private.backend_flags import has_gpu
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.torch_private.replaced import Replaceable
from meta_magic.torch_private.replacing import Replacements

PLAIN = torch.Generator


class GeneratorKind(type(torch.Generator)):  # type: ignore[misc]  # torch has one of its own
    """Makes every generator an instance of the replacement of ``torch.Generator``."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, PLAIN)


class Generator(torch.Generator, metaclass=GeneratorKind):
    """A generator; for a planned device a generator of the CPU.

    Args:
        device: A device, as torch accepts it.
    """

    def __new__(cls, device: Any = "cpu") -> Any:
        """Make torch's own generator, or one of this class for a planned device.

        Torch's own if possible: for another class C++ asks Python for the type, and an
        interrupt at that moment would count as the answer.
        """
        plan = find_plan()
        device = torch.device(device) if plan is None else plan.read(device)
        if is_there(device):
            return PLAIN(device)
        if device.type in ("cpu", "meta"):
            return PLAIN("cpu")
        make: Any = super().__new__
        made = make(cls, "cpu")
        name_generator(made, device)
        return made

    __module__ = "torch"

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # torch has an attribute
        """The planned device."""
        return planned_device_of(self)


def is_there(device: torch.device) -> bool:
    """Whether this machine has a GPU."""
    is_known = device.type == "cuda" and has_gpu()
    return is_known and device.index < torch.cuda.device_count()


class PlannedGenerators(Replacements):
    """Makes ``torch.Generator`` accept planned devices, within the block."""

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
"""Functions that ``torch.manual_seed`` calls, and the kinds of device they seed."""


class SeededDevices(Replacements):
    """Makes ``torch.manual_seed`` seed planned devices as well, within the block."""

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
    """Replacements of ``torch.cuda.manual_seed`` and its like."""

    def __init__(self, plan: DevicePlan, draws: Draws) -> None:
        self._plan = plan
        self._draws = draws

    def list_replacements(self) -> dict[str, Callable[..., Any]]:
        """Return the replacement of each function by its name."""
        return {
            "manual_seed": self._seed,
            "manual_seed_all": do_nothing,
            "initial_seed": lambda: self._find().initial_seed() ^ ELSEWHERE,
            "get_rng_state": self._get,
            "set_rng_state": self._set,
            "get_rng_state_all": lambda: [
                self._get(i) for i in range(self._plan.n_accelerators or 1)
            ],
            "set_rng_state_all": self._set_all,
        }

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
