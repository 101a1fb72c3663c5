"""Count the real memory that operators take, and say who took it unasked."""

from meta_magic.recording.identities.function_names import describe_function
from meta_magic.recording.identities.places import Places
from meta_magic.recording.rows.findings import Findings
from meta_magic.recording.signatures.entries import LiveCall
from meta_magic.torch_private.dispatcher import pad_packed
from meta_magic.torch_private.modes import device_constructors

__all__ = ["RealMemory"]


class RealMemory:
    """The storages that operators made on a real device.

    Attributes:
        nbytes: Their bytes.
    """

    def __init__(self, places: Places, findings: Findings) -> None:
        self.nbytes = 0
        self._places = places
        self._findings = findings

    def count(self, call: LiveCall, n_storages: int) -> None:
        """Count what a call took; note it if nobody asked for it.

        Args:
            call: The call.
            n_storages: How many storages were known before it.
        """
        made = {
            seen[1].number: tensor.untyped_storage().nbytes()
            for tensor, seen in call.outputs
            if seen[1] is not None
            and seen[1].number >= n_storages
            and not seen[2].is_meta
        }
        self.nbytes += sum(made.values())
        function = self._places.function
        is_asked = function in device_constructors() or function is pad_packed
        if made and not call.inputs and not is_asked:
            name = describe_function(function) or "an operator called by itself"
            text = f"{name} ignored the meta device and made a real tensor on the CPU"
            self._findings.note("factory", text)
