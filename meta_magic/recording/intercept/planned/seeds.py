"""Seeds and states of the default generators of GPUs that are planned."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Generator, Tensor

from meta_magic.recording.identities.device_plan import DevicePlan
from meta_magic.recording.intercept.planned.objects import find_index
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction

__all__ = ["PlannedSeeds"]


class PlannedSeeds:
    """Answers for ``torch.cuda.manual_seed`` and what else is about generators.

    Args:
        plan: Knows how many GPUs there are.
        generator_at: Returns what stands for the default generator of a device.
    """

    def __init__(
        self, plan: DevicePlan, generator_at: Callable[[torch.device], Generator]
    ) -> None:
        self._plan = plan
        self._generator_at = generator_at

    def list_answers(self) -> dict[str, Callable[..., Any]]:
        """Return what stands for each function, by its name."""
        return {
            "manual_seed": self._seed,
            "manual_seed_all": self._seed_all,
            "initial_seed": lambda: self._find().initial_seed(),
            "get_rng_state": self._get,
            "set_rng_state": self._set,
            "get_rng_state_all": lambda: [self._get(i) for i in self._list_indices()],
            "set_rng_state_all": self._set_all,
        }

    def _list_indices(self) -> range:
        return range(self._plan.n_accelerators or 1)

    def _find(self, device: Any = None) -> Generator:
        is_named = device not in ("cuda", None)
        index = find_index(self._plan, device if is_named else None)
        return self._generator_at(torch.device("cuda", index))

    def _seed(self, seed: int) -> None:
        self._find().manual_seed(int(seed))

    def _seed_all(self, seed: int) -> None:
        for index in self._list_indices():
            self._find(index).manual_seed(int(seed))

    def _get(self, device: Any = None) -> Tensor:
        with DisableTorchFunction(), DisableTorchDispatch():
            return self._find(device).get_state()

    def _set(self, state: Tensor, device: Any = None) -> None:
        with DisableTorchFunction(), DisableTorchDispatch():
            self._find(device).set_state(state)

    def _set_all(self, states: Iterable[Tensor]) -> None:
        for index, state in enumerate(states):
            self._set(state, index)
