"""Types of tensors as torch names them in errors, as on the device that is meant."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from meta_magic.trace.options import DeviceName

__all__ = ["name_types"]

ON_META: Final = re.compile(r"\bMeta(\w+)Type\b|\btorch\.meta\.(\w+)\b")

BACKENDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {"cpu": ("CPU", "torch"), "cuda": ("CUDA", "torch.cuda")}
)

OLD: Final = frozenset(
    {"Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short"}
)
"""What has a class of tensors of its own: torch writes its name instead.

Source:
    ``processErrorMsg`` in ``torch/csrc/Exceptions.cpp`` of torch 2.13.
"""


def name_types(error: Exception, device: DeviceName) -> None:
    """Have an error name types of a device where it names those of meta."""
    if device == "meta" or not ON_META.search(str(error)):
        return
    backend, package = BACKENDS[device]

    def name(found: re.Match[str]) -> str:
        kind = found[1]
        if kind is None:
            return f"{package}.{found[2]}"
        return f"{package}.{kind}Tensor" if kind in OLD else f"{backend}{kind}Type"

    error.args = tuple(
        ON_META.sub(name, part) if isinstance(part, str) else part
        for part in error.args
    )
