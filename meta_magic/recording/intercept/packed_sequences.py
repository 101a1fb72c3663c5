"""Pack and pad sequences: lengths are values, and batch sizes are on the CPU."""

from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.recording.identities.device_plan import META, DevicePlan
from meta_magic.recording.rows.constants import Constants
from meta_magic.recording.signatures.entries import Args
from meta_magic.torch_private.dispatcher import pack_padded, pad_packed

PACKING: Final = frozenset[Any]({pack_padded, pad_packed})
CPU: Final = torch.device("cpu")


class Packer:
    """Packs and pads sequences on meta.

    Args:
        constants: Keeps the returned lengths.
    """

    def __init__(self, plan: DevicePlan, constants: Constants) -> None:
        self._plan = plan
        self._constants = constants

    def run(self, func: Any, args: Args) -> Any:
        """Pack with the values of the lengths, or pad and return lengths on meta."""
        return self._pack(*args) if func is pack_padded else self._pad(*args)

    def _pack(self, data: Tensor, lengths: Tensor, *rest: Any) -> Any:
        """Pack sequences.

        Raises:
            RuntimeError: The lengths are not on the CPU; the message is torch's.
        """
        placement = self._plan.placement_of(lengths) or CPU
        if placement.type not in ("cpu", "meta"):
            kind = str(lengths.type()).rpartition(".")[2].removesuffix("Tensor")
            raise RuntimeError(
                "'lengths' argument should be a 1D CPU int64 tensor, but got "
                f"{lengths.ndim}D {placement.type} {kind} tensor"
            )
        return pack_padded(data, lengths.cpu(), *rest)

    def _pad(self, *args: Any) -> Any:
        padded, lengths = pad_packed(*args)
        if lengths.is_meta:
            return padded, lengths
        values = lengths.tolist()
        made = torch.tensor(values, device=META)
        self._constants.note_values(made, torch.tensor, (values,), {})
        self._plan.set_placements([made], CPU)
        return padded, made
