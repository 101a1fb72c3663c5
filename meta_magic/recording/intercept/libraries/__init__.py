"""What a recording must know of other libraries: one file for each.

A library's file holds one ``Library`` record; below, they are put into tables, which
the function mode and ``init="reset"`` ask. To support a function of another library,
write its file, add its record to ``LIBRARIES``, and a test. May import
``signatures`` and ``torch_private``. Read ``library`` first.
"""

from typing import Any, Final

from meta_magic.recording.intercept.libraries.library import Adopt
from meta_magic.recording.intercept.libraries.safetensors import SAFETENSORS
from meta_magic.recording.intercept.libraries.transformers import TRANSFORMERS

__all__ = [
    "ADOPTED",
    "FIND_WRITERS",
    "INITIALIZE",
    "LIBRARIES",
    "MAKE_REAL",
    "REPORTED_DEVICE",
]

LIBRARIES: Final = (TRANSFORMERS, SAFETENSORS)

MAKE_REAL: Final = frozenset[str]().union(*(it.make_real for it in LIBRARIES))
"""Names of the functions in which factories make real tensors."""

REPORTED_DEVICE: Final = frozenset[str]().union(
    *(it.reported_device for it in LIBRARIES)
)
"""Functions in which ``x.device`` is the device whose kernels are recorded."""

ADOPTED: Final[dict[Any, Adopt]] = {
    function: adopt for it in LIBRARIES for function, adopt in it.adopted.items()
}
"""By torch's function: makes a tensor of memory that a library made."""

FIND_WRITERS: Final = tuple(it.find_writers for it in LIBRARIES)
"""Return the functions by which libraries write tensors to files."""

INITIALIZE: Final = tuple(name for it in LIBRARIES for name in it.initialize)
"""Names of the methods by which models initialize each of their submodules."""
