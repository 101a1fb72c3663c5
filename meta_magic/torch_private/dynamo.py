"""What torch imports dynamo for although it compiles nothing."""

import sys
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import torch

from meta_magic.torch_private.replaced import DYNAMO

__all__ = ["leave_dynamo_out"]


def leave_dynamo_out() -> None:
    """Have torch's own functions do without dynamo where it is not there yet, for good.

    To be called in a child that runs nothing of the user's any more, or only tries
    whether it runs. Without it the first of torch's kernels in Python imports dynamo,
    which takes a second, and writes files, which no trial may.
    """
    if DYNAMO not in sys.modules:
        stand_in: Any = ModuleType(DYNAMO)
        stand_in.disable = lambda function, *_, **__: function
        stand_in.set_stance = lambda *_, **__: nullcontext()
        sys.modules[DYNAMO] = torch._dynamo = stand_in
