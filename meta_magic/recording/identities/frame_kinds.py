"""What the frames on the stack say of a call: who called it, and to do what."""

import sysconfig
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import torch
from torch import nn

from meta_magic.trace.signature import Phase

__all__ = [
    "BACKWARD",
    "CELL",
    "FORWARD",
    "INIT",
    "KINDS",
    "MODULE",
    "OPTIM",
    "OWN",
    "PACKAGE",
    "TOP",
    "TORCH",
    "TORCH_FILES",
    "USER",
    "FrameKinds",
    "is_library",
    "phase_of",
]

TORCH: Final = Path(torch.__file__).parent
PACKAGE: Final = f"{Path(__file__).parents[2]}/"
TORCH_FILES: Final = f"{TORCH}/"
"""How the names of torch's own files begin."""

OWN: Final = (TORCH_FILES, PACKAGE, "<frozen ")
OPTIM: Final = f"{TORCH / 'optim'}/"
NN_INIT: Final = f"{TORCH / 'nn' / 'init.py'}"
STDLIB: Final = f"{sysconfig.get_paths()['stdlib']}/"
PACKAGES: Final = ("/site-packages/", "/dist-packages/")
INIT_METHODS: Final = ("__init__", "reset_parameters", "_init_weights", "init_weights")

USER, CELL, TOP, INIT, OPTIMIZER, BACKWARD, FORWARD, MODULE = (
    1,
    2,
    4,
    8,
    16,
    32,
    64,
    128,
)
KINDS: Final = MODULE - 1
"""What places are told apart by: not whether a module is the first argument."""


class FrameKinds:
    """Classifies frames by their code, each code once.

    Args:
        cell_file: File name of the code whose lines are the cell's.
        top: Code object of the outermost frame of interest; None for a module's.

    Attributes:
        by_code: The kinds by ``id`` of the code, all of which are kept alive.
    """

    def __init__(self, cell_file: str, top: CodeType | None) -> None:
        self.by_code: dict[int, int] = {}
        self._cell_file = cell_file
        self._top = top
        self._kept: list[CodeType] = []
        self._name_by_code: dict[int, str] = {}

    def classify(self, frame: FrameType) -> int:
        """Return the kinds of a frame whose code was not met before."""
        code = frame.f_code
        file = code.co_filename
        kind = USER
        if file == self._cell_file:
            is_top = code is self._top or code.co_name == "<module>"
            kind = USER | CELL | (TOP if is_top else 0)
        elif file.startswith(OPTIM):
            kind = OPTIMIZER
        elif file == NN_INIT:
            kind = INIT
        elif file.startswith(OWN) or is_stdlib(file):
            kind = 0
        if code.co_name in INIT_METHODS:
            name = name_first_argument(code)
            if isinstance(frame.f_locals.get(name), nn.Module):
                kind |= INIT | MODULE
                self._name_by_code[id(code)] = name
        self.by_code[id(code)] = kind
        self._kept.append(code)
        return kind

    def find_module(self, frame: FrameType) -> nn.Module | None:
        """Return the module that a frame of the kind ``MODULE`` is a method's of."""
        module = frame.f_locals.get(self._name_by_code[id(frame.f_code)])
        return module if isinstance(module, nn.Module) else None


def phase_of(flags: int) -> Phase:
    """Return what the program was doing, from the kinds of frames on the stack."""
    if flags & BACKWARD:
        return "backward"
    if flags & OPTIMIZER:
        return "optimizer"
    if flags & INIT:
        return "init"
    return "forward" if flags & FORWARD else "other"


@cache
def is_library(file: str) -> bool:
    """Whether ``file`` belongs to an installed package, but torch and this one."""
    return any(part in file for part in PACKAGES) and not file.startswith(OWN)


def is_stdlib(file: str) -> bool:
    """Whether ``file`` belongs to Python itself."""
    return file.startswith(STDLIB) and not any(part in file for part in PACKAGES)


def name_first_argument(code: CodeType) -> str:
    """Return the name of the first argument of a function; "" if it has none."""
    return code.co_varnames[0] if code.co_varnames else ""
