"""List the draws of a recording: of which operator, of which generator, from where."""

from array import array
from typing import Final

import torch
from torch import Tensor

from meta_magic.recording.rows.generator_tokens import MARK, Stream, read_accelerators
from meta_magic.torch_private.interrupts import unbroken

__all__ = ["DRAW_BITS", "TOKEN_BITS", "DrawList"]

TOKEN_BITS: Final = 32
DRAW_BITS: Final = (1 << TOKEN_BITS) - 1
"""Of a token the lowest bits say which draw it is, those above of which recording."""

n_recordings = 0


class DrawList:
    """The draws of one recording, each with the token that it leaves."""

    def __init__(self) -> None:
        global n_recordings  # noqa: PLW0603  tokens of two recordings must differ
        n_recordings += 1
        self._base = MARK | (n_recordings & 0xFFFF) << TOKEN_BITS
        self._words = array("I")
        self._shadows: list[Tensor | None] = []
        self._made: dict[int, Tensor] = {}
        self._accelerator: tuple[tuple[str, bytes], ...] = ()

    @unbroken
    def _add(self, op: int, stream: Stream, source: int) -> None:
        draw = len(self._shadows)
        if draw == 0 and torch.cuda.is_initialized():
            self._accelerator = read_accelerators()
        self._words.extend((op, stream.number, source))
        self._shadows.append(stream.shadow)
        if source:  # else it holds the token of a recording around this one
            stream.put(self._base | draw)

    @unbroken
    def _add_next(self, op: int, stream: Stream) -> bool:
        """Add a draw from where the last one was, if that drew nothing for real.

        Returns:
            Whether a generator stands there still; else nothing is added.
        """
        draw = len(self._shadows)
        last, token = draw - 1, self._base | draw
        if last < 0 or last in self._made:
            return False
        if not stream.put_next(self._shadows[last], token):
            return False
        self._words.extend((op, stream.number, 2 * draw))
        self._shadows.append(stream.shadow)
        return True
