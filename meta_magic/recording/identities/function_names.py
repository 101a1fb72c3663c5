"""What torch's functions are called."""

from typing import Any

import torch

__all__ = ["describe_function"]


def describe_function(function: Any) -> str | None:
    """Return the name under which torch's users know a function."""
    if function is None:
        return None
    name = torch.overrides.resolve_name(function)
    own = getattr(function, "__name__", "")
    if name and not name.endswith(f".{own}") and getattr(torch, own, None) is function:
        return f"torch.{own}"  # torch.spmm is torch.mm, and the name that torch finds
    if name:
        return str(name)
    module = getattr(function, "__module__", None) or "torch"
    return f"{module}.{getattr(function, '__qualname__', function)}"
