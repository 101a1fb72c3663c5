"""The call that raised the error which ended a recording."""

from dataclasses import dataclass

from meta_magic.trace.signature import Signature

__all__ = ["RaisedCall"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedCall:
    """A call that returned nothing: no row of the program, which replays have to run.

    Attributes:
        signature: What it was called with. Of a function that raised before any
            operator, ``op`` is the function's name, and arguments that were given by
            position alone are named by that where torch tells no names.
        place: Where it came from: an index into ``Program.places``, from 1.
        module_word: In what it was called; see ``program.HEADER``.
        goes_on: Whether the same call of a function made the operator before it.
        tensors: The number of each tensor that it was given.
        error: Type of the error, and the first line of its text.
        sizes: What the module that was called takes and gives, where it says so as
            ``in_features`` and ``out_features`` do; else None.
    """

    signature: Signature
    place: int
    module_word: int
    goes_on: bool
    tensors: tuple[int, ...]
    error: str
    sizes: tuple[int, int] | None = None
