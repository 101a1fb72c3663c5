"""What the Materialize panel offers, what was chosen, and what that takes in words."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from meta_magic.errors import MaterializeError
from meta_magic.materializing.materialize import INITS
from meta_magic.materializing.targets import find_tensors
from meta_magic.trace.units import format_bytes

if TYPE_CHECKING:
    from meta_magic.trace.modules import ModuleNode

__all__ = [
    "AS_PLANNED",
    "CHECKPOINT",
    "DTYPES",
    "STATE_BY_NAME",
    "Choice",
    "describe_error",
    "describe_root",
    "format_need",
    "is_on_meta",
]

CHECKPOINT: Final = "checkpoint"
"""The choice of ``init`` that takes its value from the field for a path."""

AS_PLANNED: Final = "as planned"
"""The choice of ``device`` that goes by the devices that the cell names."""

AFTER_CELL: Final = "as after the cell"
AS_CONSTRUCTED: Final = "as constructed"
STATE_BY_NAME: Final = {AFTER_CELL: "current", AS_CONSTRUCTED: "constructed"}
"""The choices of ``state``, and what they stand for."""

REPLAYED: Final = (INITS[0], CHECKPOINT)
"""The choices of ``init`` that replay, and so go by a state."""

AS_BUILT: Final = "as built"
DTYPES: Final = (AS_BUILT, "float32", "bfloat16", "float16")

NO_PATH: Final = "type the path of a checkpoint: a file, an index or a directory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What stands in the fields of the panel.

    Attributes:
        root: Index of the root module; behind the last stands for all variables.
        path: Name of a module within it, as ``state_dict`` has it; "" for it.
        device: Name of the device, or ``as planned``.
        init: A name of ``init=`` for what fills the tensors, or ``checkpoint``.
        dtype: Name of a dtype in torch, or ``as built``.
        values: A name of ``STATE_BY_NAME``; of no meaning where nothing is replayed.
        checkpoint: Path to read when ``init`` is ``checkpoint``.
    """

    root: int = 0
    path: str = ""
    device: str = "cpu"
    init: str = INITS[0]
    dtype: str = AS_BUILT
    values: str = AFTER_CELL
    checkpoint: str = ""

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> "Choice":
        """Return what a front end sent; fields that it does not have are ignored."""
        names = cls.__dataclass_fields__
        return cls(**{name: fields[name] for name in names if name in fields})

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of :func:`materialize`, the module aside.

        Raises:
            MaterializeError: The path is missing.
        """
        path = self.checkpoint.strip()
        if self.init == CHECKPOINT and not path:
            raise MaterializeError(NO_PATH)
        values = self.values if self.init in REPLAYED else AFTER_CELL
        return {
            "device": None if self.device == AS_PLANNED else self.device,
            "init": Path(path) if self.init == CHECKPOINT else self.init,
            "dtype": None if self.dtype == AS_BUILT else getattr(torch, self.dtype),
            "state": STATE_BY_NAME[values],
        }


def is_on_meta(module: nn.Module | None) -> bool:
    """Say whether a module lives and something of it is on meta."""
    return module is not None and any(h.tensor.is_meta for h in find_tensors(module))


def describe_root(node: "ModuleNode") -> str:
    """Return a root as the report names it."""
    return f"{node.name}: {node.class_name}" if node.name else node.class_name


def describe_error(error: BaseException) -> str:
    """Return what the panel says of an error: ours tell all that there is to it."""
    is_ours = isinstance(error, MaterializeError)
    return str(error) if is_ours else f"{type(error).__name__}: {error}"


def format_need(nbytes: int, peak: int) -> str:
    """Return the bytes of the result, and those on the way to it if they are more."""
    text = format_bytes(nbytes)
    at_peak = format_bytes(peak)
    return text if peak <= nbytes or at_peak == text else f"{text}, {at_peak} at peak"
