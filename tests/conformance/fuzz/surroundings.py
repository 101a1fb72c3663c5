"""The state of torch in which a program begins, and that comes back after it."""

import contextlib
import random
import warnings
from collections.abc import Iterator

import numpy as np
import torch


def set_defaults(seed: int) -> None:
    """Seed everything, and set the flags that a program may change."""
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.use_deterministic_algorithms(False)
    torch.set_flush_denormal(False)
    torch.default_generator.manual_seed(seed)  # torch's own would note the stack, too
    np.random.seed(seed)  # noqa: NPY002  the generator that programs use
    random.seed(seed)


@contextlib.contextmanager
def surroundings(seed: int) -> Iterator[None]:
    """Give a block the same state each time, and take away what it changed."""
    set_defaults(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        set_defaults(0)
