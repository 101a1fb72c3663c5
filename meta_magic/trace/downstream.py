"""What depends on an assumption: the operators that read what it decided."""

import math
from typing import TYPE_CHECKING

from meta_magic.trace.program import HEADER, Program
from meta_magic.trace.signature import NAN, NEGATIVE_NAN, Argument, Signature

if TYPE_CHECKING:
    from meta_magic.trace.provenance import Assumption

__all__ = ["AssumedNumbers", "find_assumed"]


class AssumedNumbers:
    """The numbers that were assumed, and that Python went on with from there.

    Where they went is only known of nan: whatever is made of it is nan again.

    Args:
        program: The program.

    Attributes:
        first: The first call that gave one; None if there is none.
    """

    def __init__(self, program: Program) -> None:
        found = (a for a in program.assumptions if a.value is not None)
        self.first: Assumption | None = next(found, None)

    def may_be_in(self, call: int, signature: Signature) -> bool:
        """Whether the arguments of a call may come from one.

        Args:
            call: Its number.
            signature: Its signature.
        """
        if self.first is None or self.first.value is None or call <= self.first.call:
            return False
        is_nan = math.isnan(self.first.value)
        return not is_nan or any(has_nan(value) for _, value in signature.arguments)


def has_nan(value: Argument) -> bool:
    """Whether an argument is nan, or has it within."""
    if isinstance(value, tuple):
        return any(map(has_nan, value))
    return value in (NAN, NEGATIVE_NAN)


def find_assumed(program: Program) -> dict[int, str]:
    """Return the assumption behind each call whose sizes or inputs rest on one."""
    assumed = {a.call: a.text for a in program.assumptions}
    if not assumed:
        return {}
    words = memoryview(program.words).cast("I")
    storages = memoryview(program.storage_by_tensor).cast("I")
    offsets, numbers = program.offsets, AssumedNumbers(program)
    text_by_storage: dict[int, str] = {}
    for index, number in enumerate(program.signature_numbers()):
        signature = program.signatures[number]
        start = offsets[index] + HEADER
        split = start + len(signature.inputs)
        read = [storages[word] for word in words[start:split]]
        found = assumed.get(index) or next(
            (text_by_storage[s] for s in read if s in text_by_storage), None
        )
        if numbers.first is not None and numbers.may_be_in(index, signature):
            found = found or numbers.first.text
        if found is None:
            continue
        assumed[index] = found
        made = [storages[word] for word in words[split : offsets[index + 1]]]
        for storage in (*made, *(read[i] for i in signature.writes)):
            text_by_storage.setdefault(storage, found)
    return assumed
