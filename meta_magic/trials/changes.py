"""What advice asks for, done to code that was not written so, while a block runs again.

Each is a context around the block in the child, which ends with its trial.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer

from meta_magic.recording.as_device.attention import AttentionOf
from meta_magic.trials.changed_calls import ChangedCalls
from meta_magic.trials.what_ifs import list_optimizers

if TYPE_CHECKING:
    from meta_magic.cost.advice.advice_records import Advice
    from meta_magic.trace.program import Program

__all__ = ["make_change"]

Context: TypeAlias = AbstractContextManager[object]


def make_change(advice: "Advice", program: "Program") -> Context | None:
    """Return what makes the change that an advice chooses; None if nothing does."""
    make = CHANGES.get(advice.kind)
    return None if make is None else make(advice, program)
