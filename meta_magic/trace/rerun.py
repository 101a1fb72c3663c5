"""The text of a block and its variables at its start, to record it again.

``trace.fit()``, ``trace.why()`` and ``trace.advice`` record a block again in a child
process. By then the user may have changed the variables: so ``make_rerun`` keeps them
before the block runs, plain data as copies, everything else as weak references.
"""

import gc
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, Final, NamedTuple

import torch

from meta_magic.trace.options import Options
from meta_magic.trace.signature import EarlierCell

PLAIN: Final = (
    *(bool, int, float, complex, str, bytes, type(None), range),
    *(torch.dtype, torch.device, torch.Size),
)
"""Types whose instances cannot change and hold nothing."""

MAX_ITEMS: Final = 300
"""Values in a container, nested ones included, up to which it is copied."""

CONTAINERS: Final = (list, tuple, set, dict)


class Former(NamedTuple):
    """A variable before the block ran.

    Attributes:
        kept: Its value where that is plain data, else a weak reference to it, or None.
        is_plain: Whether ``kept`` is the value.
    """

    kept: Any
    is_plain: bool

    def read(self) -> Any:
        """Return the value; raise a ``LookupError`` if it is gone."""
        value = self.kept if self.is_plain or self.kept is None else self.kept()
        if value is None and not self.is_plain:
            raise LookupError
        return value


class Modes(NamedTuple):
    """The modes of torch around a block.

    Attributes:
        autocast: (device type, whether autocast was on, its dtype).
    """

    is_grad_enabled: bool
    is_inference: bool
    dtype: torch.dtype
    autocast: tuple[tuple[str, bool, torch.dtype], ...]


class ModuleText(NamedTuple):
    """A module of the user whose text is a part of a block.

    Attributes:
        name: Its name in ``sys.modules``.
        first: The first of its lines in the block's text.
        last: The last of them.
    """

    name: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """All that is needed to record a block again.

    It keeps no object of the user alive but plain data.

    Attributes:
        text: The block as Python, at the lines of its file; None where it is a ``with``
            statement or a function of that file.
        file: File name under which it ran.
        line: Line of that statement, with decorators; 0 for a whole text.
        module: Name of the module whose variables the block uses.
        names: The names in its code.
        before: The variables of these names, before the block ran.
        function: The code of the function around it, which has variables of its own;
            None outside of functions.
        asked_by: For a whole function, as a test of pytest: the name by which its code
            asks the trace (``meta_trace``). The block ends before that statement.
        earlier: The cells that ran before, the oldest first.
        modules: Parts of the text that are the user's modules; they run first.
        own_line: The line at which the block itself begins in the text, after the cells
            that it depends on; 0 if the text has nothing else.
    """

    text: str | None
    file: str
    line: int = 0
    module: str
    names: frozenset[str]
    before: Mapping[str, Former] = field(repr=False)
    function: CodeType | None = None
    asked_by: str | None = None
    options: Options
    modes: Modes
    earlier: Sequence[EarlierCell] = field(default=(), repr=False)
    modules: tuple[ModuleText, ...] = ()
    own_line: int = 0

    @property
    def local(self) -> frozenset[str]:
        """The names of the function's own variables."""
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
    """Return a :class:`Rerun`, with its fields, of a block that has not run yet.

    ``of_module`` are the variables of the block's module, ``variables`` all that it can
    see. None where ``of_module`` is no imported module's: it may be gone any time.
    """
    module = of_module.get("__name__")
    known = sys.modules.get(module) if isinstance(module, str) else None
    if not isinstance(module, str) or known is None or vars(known) is not of_module:
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


def make_call_rerun(
    code: CodeType,
    of_module: Mapping[str, object],
    arguments: Mapping[str, object],
    options: Options,
    asked_by: str = "",
) -> Rerun | None:
    """Return a :class:`Rerun` of a function's body, before it is called.

    ``of_module`` are the variables of its module, ``arguments`` those of the call by
    name; ``options`` and ``asked_by`` are as in :class:`Rerun`.
    """
    rerun = make_rerun(
        text=None,
        file=code.co_filename,
        line=code.co_firstlineno,
        of_module=of_module,
        variables={**of_module, **arguments},
        names=list_names(code),
        function=code,
        options=options,
    )
    return rerun and replace(rerun, asked_by=asked_by)


def read_modes() -> Modes:
    """Return the modes of torch in this thread."""
    return Modes(
        is_grad_enabled=torch.is_grad_enabled(),
        is_inference=torch.is_inference_mode_enabled(),
        dtype=torch.get_default_dtype(),
        autocast=tuple(
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in ("cpu", "cuda")
        ),
    )


def list_names(code: CodeType) -> frozenset[str]:
    """Return all names in a code object and in those nested in it."""
    return frozenset(name for one in walk_codes(code) for name in one.co_names) | {
        *code.co_varnames,
        *code.co_cellvars,
        *code.co_freevars,
    }


def walk_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object, and those nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from walk_codes(constant)


def keep(value: object) -> Former:
    """Return a variable's value as a copy or a weak reference."""
    try:
        return Former(copy_plain(value), is_plain=True)
    except ValueError:
        pass
    try:
        return Former(weakref.ref(value), is_plain=False)
    except TypeError:  # a container, or an object of a class with slots
        is_plain = holds_only_data(value)
        return Former(value if is_plain else None, is_plain=is_plain)


def holds_only_data(value: object) -> bool:
    """Whether an object refers to few objects, none of which can be weakly referenced.

    Such objects are plain data: to keep them alive costs little and changes nothing.
    """
    seen, todo = {id(value)}, [value]
    while todo:
        for item in gc.get_referents(todo.pop()):
            if type(item).__weakrefoffset__ and not isinstance(item, type):
                return False
            if id(item) not in seen and not isinstance(item, type):
                seen.add(id(item))
                todo.append(item)
            if len(seen) > MAX_ITEMS:
                return False
    return True


def copy_plain(value: Any, room: Iterator[int] | None = None) -> Any:
    """Return a copy of plain data; ValueError for other, large or circular data."""
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
