"""Number what functions make that are served, as if their operators had run."""

from collections.abc import Sequence
from typing import Final

from meta_magic.recording.identities.tensors import UNSEEN, TensorRegistry
from meta_magic.recording.signatures.templates import Operands, Template

__all__ = ["MadeNumbers"]

ALONE: Final = (0,)
"""Storages of what makes one tensor, on a new one."""


class MadeNumbers:
    """Gives out the numbers of tensors and storages that are still to be made.

    Args:
        registry: Numbers of tensors and storages.
    """

    def __init__(self, registry: TensorRegistry) -> None:
        self._registry = registry

    def number(
        self, template: Template, operands: Operands
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Number what a function makes, and the arguments that were never seen.

        In the order in which the dispatcher would have met them, so that a recording
        does not depend on what was recorded before.

        Returns:
            The numbers of the tensors made, and of the storages made.
        """
        if UNSEEN in operands.numbers:
            return self._number_one_by_one(template, operands)
        registry = self._registry
        storage_by_tensor, made = registry.storage_by_tensor, template.storages
        n_tensors, n_storages = len(storage_by_tensor), registry.n_storages
        registry.n_storages = n_storages + template.n_storages
        if made == ALONE:
            storage_by_tensor.append(n_storages)
            return (n_tensors,), (n_storages,)
        for storage in made:
            storage_by_tensor.append(
                n_storages + storage
                if storage >= 0
                else storage_by_tensor[operands.numbers[~storage]]
            )
        return (
            range(n_tensors, n_tensors + len(made)),
            range(n_storages, registry.n_storages),
        )

    def _number_one_by_one(
        self, template: Template, operands: Operands
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Number them where an argument has no number yet."""
        registry, numbers = self._registry, operands.numbers
        storage_by_tensor = registry.storage_by_tensor
        made: list[int] = []
        storages: list[int] = []
        unseen = [read for read in template.first_reads if numbers[read[0]] < 0]
        for index, storage in enumerate(template.storages):
            while unseen and unseen[0][1] == index:
                self._number_argument(unseen.pop(0)[0], operands)
            made.append(len(storage_by_tensor))
            if storage < 0:
                number = storage_by_tensor[numbers[~storage]]
            elif storage < len(storages):
                number = storages[storage]
            else:
                number = registry.n_storages
                registry.n_storages = number + 1
                storages.append(number)
            storage_by_tensor.append(number)
        for index, _ in unseen:  # of what makes nothing more
            self._number_argument(index, operands)
        return made, storages

    def _number_argument(self, index: int, operands: Operands) -> None:
        tensor, seen = operands.tensors[index], operands.seens[index]
        number = self._registry.add_seen(tensor, seen[2])
        for other, same in enumerate(operands.tensors):
            if same is tensor:
                operands.numbers[other] = number
