"""``real()``: the way out of the plan, in a cell."""

import torch

__all__ = ["real"]


def real() -> torch.device:
    """Return a context manager within which a cell's tensors are real.

    Factories make real tensors on the CPU there, and ``x.cpu()`` gives the values of
    ``x``. It is ``torch.device("cpu")``, which means the same as a context; elsewhere
    in a cell a device that is named is a plan.

    Example:
        >>> with record():
        ...     with real():
        ...         weights = torch.tensor([0.1, 0.9])
        >>> weights.device
        device(type='cpu')
    """
    return torch.device("cpu")
