"""Which operators one call of a torch function made."""

from collections.abc import Iterator

from meta_magic.trace.program import GOES_ON, Program

__all__ = ["first_operators"]


def first_operators(program: Program) -> Iterator[int]:
    """Yield, for each operator call, the first one of the same call of a function.

    What no function called, as autograd does, stands alone.
    """
    words = memoryview(program.words).cast("I")
    first = before = 0
    for index, offset in enumerate(program.offsets[:-1]):
        place = words[offset + 1]
        # A hook may have called functions between two operators of a backward pass.
        if words[offset + 3] != GOES_ON or place != before:
            first = index
        before = place
        yield first
