"""What it takes to record a block again: its text, and its variables as they were."""

import gc
import sys
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Final, NamedTuple

import torch

from meta_magic.trace.options import Options

PLAIN: Final = (
    *(bool, int, float, complex, str, bytes, type(None), range),
    *(torch.dtype, torch.device, torch.Size),
)
"""Types whose instances cannot change and hold nothing."""

MAX_ITEMS: Final = 300
"""How many values a container may hold in all that is copied."""

CONTAINERS: Final = (list, tuple, set, dict)


class Former(NamedTuple):
    """A variable as it was.

    Attributes:
        kept: Its value where that is plain data, else a weak reference to it, or None.
        is_plain: Which of them.
    """

    kept: Any
    is_plain: bool

    def read(self) -> Any:
        """Return the value.

        Raises:
            LookupError: It is gone.
        """
        value = self.kept if self.is_plain or self.kept is None else self.kept()
        if value is None and not self.is_plain:
            raise LookupError
        return value


class Modes(NamedTuple):
    """What torch was told to do by whatever is around a block.

    Attributes:
        is_grad_enabled: Whether it kept what a backward pass needs.
        is_inference: Whether it was in inference mode.
        dtype: Of numbers for which none is named.
        autocast: Of each type of device whether it cast, and to what.
    """

    is_grad_enabled: bool
    is_inference: bool
    dtype: torch.dtype
    autocast: tuple[tuple[str, bool, torch.dtype], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """What it takes to record a block again.

    It keeps nothing of the user's alive but plain data.

    Attributes:
        text: The block as Python, at the lines of its file; None where it is a ``with``
            statement of that file.
        file: File name under which it ran.
        line: Line at which the statement was entered; 0 for a whole text.
        module: Name of the module whose variables are the block's.
        names: The names that its code knows.
        before: Those of them that stood for something, and what that was.
        function: The code of the function that it is in, whose variables are others
            than its module's; None outside of functions.
        options: What the user chose.
        modes: What torch was told to do.
    """

    text: str | None
    file: str
    line: int = 0
    module: str
    names: frozenset[str]
    before: Mapping[str, Former] = field(repr=False)
    function: CodeType | None = None
    options: Options
    modes: Modes

    @property
    def local(self) -> frozenset[str]:
        """The names that stand for variables of a function."""
        code = self.function
        if code is None:
            return frozenset()
        return frozenset({*code.co_varnames, *code.co_cellvars, *code.co_freevars})


def make_rerun(
    *,
    text: str | None,
    file: str,
    line: int = 0,
    of_module: Mapping[str, object],
    variables: Mapping[str, object],
    names: frozenset[str],
    function: CodeType | None = None,
    options: Options,
) -> Rerun | None:
    """Return what it takes to record a block again, while nothing of it has run.

    Args:
        text: As in :class:`Rerun`, like those that are not named here.
        file: The same.
        line: The same.
        of_module: The variables of its module.
        variables: All that it knows.
        names: As in :class:`Rerun`.
        function: The same.
        options: The same.

    Returns:
        None where its variables are no module's: they may be gone any time.
    """
    module = of_module.get("__name__")
    if not isinstance(module, str) or not is_of(of_module, module):
        return None
    return Rerun(
        text=text,
        file=file,
        line=line,
        module=module,
        names=names,
        before={n: keep(variables[n]) for n in sorted(names) if n in variables},
        function=function,
        options=options,
        modes=read_modes(),
    )


def is_of(variables: Mapping[str, object], module: str) -> bool:
    """Whether variables are those of a module that is there."""
    known = sys.modules.get(module)
    return known is not None and vars(known) is variables


def read_modes() -> Modes:
    """Return what torch is told to do, in this thread."""
    return Modes(
        is_grad_enabled=torch.is_grad_enabled(),
        is_inference=torch.is_inference_mode_enabled(),
        dtype=torch.get_default_dtype(),
        autocast=tuple(
            (
                device,
                torch.is_autocast_enabled(device),
                torch.get_autocast_dtype(device),
            )
            for device in ("cpu", "cuda")
        ),
    )


def list_names(code: CodeType) -> frozenset[str]:
    """Return all names that code, and the code in it, knows."""
    return frozenset(name for one in walk_codes(code) for name in one.co_names) | {
        *code.co_varnames,
        *code.co_cellvars,
        *code.co_freevars,
    }


def walk_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield code, and the code in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from walk_codes(constant)


def keep(value: object) -> Former:
    """Return a variable's value as it is to be kept."""
    try:
        return Former(copy_plain(value), is_plain=True)
    except ValueError:
        pass
    try:
        return Former(weakref.ref(value), is_plain=False)
    except TypeError:  # of a container, or a class with slots
        is_plain = holds_only_data(value)
        return Former(value if is_plain else None, is_plain=is_plain)


def holds_only_data(value: object) -> bool:
    """Whether all that an object refers to is small, and nobody would miss it."""
    met, todo = {id(value)}, [value]
    while todo:
        for item in gc.get_referents(todo.pop()):
            if type(item).__weakrefoffset__ and not isinstance(item, type):
                return False
            if id(item) not in met and not isinstance(item, type):
                met.add(id(item))
                todo.append(item)
            if len(met) > MAX_ITEMS:
                return False
    return True


def copy_plain(value: Any, room: Iterator[int] | None = None) -> Any:
    """Return plain data, copied.

    Raises:
        ValueError: It is not plain, or too large, or holds itself.
    """
    room = iter(range(MAX_ITEMS)) if room is None else room
    if next(room, None) is None:
        raise ValueError
    if type(value) in PLAIN:
        return value
    if type(value) not in CONTAINERS:
        raise ValueError
    if type(value) is dict:
        return {copy_plain(k, room): copy_plain(v, room) for k, v in value.items()}
    return type(value)([copy_plain(item, room) for item in value])
