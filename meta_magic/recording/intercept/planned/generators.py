"""Generators of a GPU that is planned: what they draw is a plan, too."""

from typing import Any

import torch

from meta_magic.recording.identities.device_plan import DevicePlan
from meta_magic.recording.identities.generator_carryover import name_generator, place_of
from meta_magic.recording.intercept.planned.plan_here import plan_here
from meta_magic.torch_private.backend_flags import has_gpu
from meta_magic.torch_private.replacing import Replacements

__all__ = ["PlannedGenerators"]

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
        plan = plan_here()
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
