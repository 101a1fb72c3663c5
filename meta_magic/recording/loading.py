"""Make ``torch.load`` load onto meta while a cell runs, unless it is told where."""

import threading
from functools import wraps
from typing import Any

import torch

__all__ = ["LoadOntoMeta"]


class LoadOntoMeta:
    """Context manager that gives ``torch.load`` the map location ``"meta"``.

    No mode and no hook of torch sees ``torch.load``, so the name itself is replaced for
    as long as the cell runs; calls from other threads behave as ever.
    """

    def __init__(self) -> None:
        self._load: Any = torch.load
        self._replaced: Any = None

    def __enter__(self) -> None:
        load, thread = torch.load, threading.get_ident()

        @wraps(load)
        def load_onto_meta(*args: Any, **kwargs: Any) -> Any:
            is_told = len(args) > 1 or kwargs.get("map_location") is not None
            if not is_told and threading.get_ident() == thread:
                kwargs["map_location"] = "meta"
            return load(*args, **kwargs)

        self._load, self._replaced = load, load_onto_meta
        torch.load = load_onto_meta

    def __exit__(self, *_: object) -> None:
        if torch.load is self._replaced:  # else somebody else replaced it meanwhile
            torch.load = self._load
