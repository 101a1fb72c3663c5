"""Find the call site of each call: the line of user code that made it, and its phase.

The report says ``line 12, forward, of torch.relu``; without this file a row would have
no line. A walk over all frames for each operator takes as long as the rest of the
recording, so the walk ends at the innermost module call: its call site is known. Read
:meth:`CallSites.locate_operator` first.
"""

import inspect
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import starmap
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, NamedTuple, TypeAlias

import torch
import typing_extensions
from torch import nn

from meta_magic.torch_private.replacing import Replacements
from meta_magic.trace.program import GOES_ON
from meta_magic.trace.signature import CallSite, Phase, SourcePosition

TakeNote: TypeAlias = Callable[[str, str], None]
"""Takes the kind and the text of a note on the line that runs now."""

Span: TypeAlias = tuple[int, int, int | None, int | None]
"""First line, last line, first column, column after the last."""


@lru_cache(maxsize=4096)
def list_spans(code: CodeType) -> list[Span]:
    """Return first line, last line, first and end column of each instruction."""
    return [
        (line or code.co_firstlineno, end or line or code.co_firstlineno, column, after)
        for line, end, column, after in code.co_positions()
    ]


def describe_position(code: CodeType, span: Span) -> SourcePosition:
    """Return the plain record of a stretch of source."""
    line, end_line, column, end_column = span
    return SourcePosition(
        file=code.co_filename,
        line=line,
        end_line=end_line,
        column=column,
        end_column=end_column,
        function=code.co_qualname,
    )


def describe_function(function: Any) -> str | None:
    """Return the name under which torch's users know a function."""
    if function is None:
        return None
    name = torch.overrides.resolve_name(function)
    own = getattr(function, "__name__", "")
    if name and not name.endswith(f".{own}") and getattr(torch, own, None) is function:
        return f"torch.{own}"  # torch.spmm is torch.mm: torch would find that name
    if name:
        return str(name)
    module = getattr(function, "__module__", None) or "torch"
    return f"{module}.{getattr(function, '__qualname__', function)}"


TORCH: Final = Path(torch.__file__).parent
PACKAGE: Final = f"{Path(__file__).parents[2]}/"
TORCH_FILES: Final = f"{TORCH}/"  # prefix of the names of torch's own files

DEPRECATED: Final = typing_extensions.__file__
"""A wrapper of torch's deprecated functions is there, before Python 3.13."""

OWN: Final = (TORCH_FILES, PACKAGE, DEPRECATED, "<frozen ")
OPTIM: Final = f"{TORCH / 'optim'}/"
NN_INIT: Final = f"{TORCH / 'nn' / 'init.py'}"
STDLIB: Final = f"{sysconfig.get_paths()['stdlib']}/"
PACKAGES: Final = ("/site-packages/", "/dist-packages/")
INIT_METHODS: Final = ("__init__", "reset_parameters", "_init_weights", "init_weights")

USER, CELL, TOP, INIT, OPTIMIZER, BACKWARD, FORWARD, MODULE = (
    1 << bit for bit in range(8)
)
KINDS: Final = MODULE - 1  # the kinds that distinguish call sites: all but ``MODULE``


class FrameKinds:
    """Classifies frames by their code, each code once; keeps the code objects alive."""

    def __init__(self, cell_file: str, top: CodeType | None) -> None:
        self.by_code: dict[int, int] = {}
        self._cell_file = cell_file
        self._top = top
        self._kept: list[CodeType] = []
        self._name_by_code: dict[int, str] = {}

    def classify(self, frame: FrameType) -> int:
        """Return the kinds of a frame whose code is new."""
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
            name = code.co_varnames[0] if code.co_varnames else ""
            if isinstance(read_locals(frame).get(name), nn.Module):
                kind |= INIT | MODULE
                self._name_by_code[id(code)] = name
        self.by_code[id(code)] = kind
        self._kept.append(code)
        return kind

    def find_module(self, frame: FrameType) -> nn.Module | None:
        """Return the module whose method runs in a frame of the kind ``MODULE``."""
        module = read_locals(frame).get(self._name_by_code[id(frame.f_code)])
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


def read_locals(frame: FrameType) -> dict[str, Any]:
    """Return the local variables of a frame."""
    held = frame.f_locals
    names = dict(held)
    # Before Python 3.13 the frame keeps this snapshot, and with it every tensor that
    # its function deletes later. Emptied, unless somebody else asked for it, too.
    is_snapshot = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
    if type(held) is dict and is_snapshot and sys.getrefcount(held) <= 3:  # noqa: PLR2004  the frame's, ours, the argument's
        held.clear()
    return names


def read_variables(frame: FrameType) -> dict[str, Any]:
    """Return the variables of a frame."""
    return {**frame.f_globals, **read_locals(frame)}


Site: TypeAlias = tuple[int, int]
"""A position in code (its number, 0 for none) and a line of the cell (0 for none)."""


class CallSiteKey(NamedTuple):
    """What identifies a call site: running function, its caller, kinds of frames."""

    function: object
    position: int
    line: int
    flags: int


Located: TypeAlias = tuple[int, int, int]
"""Number of a call site, from 1; its owner: twice the module under construction there,
plus 1, or 0 if there is none; and the last word of the header of a row there."""

Calls: TypeAlias = tuple[object, ...]
"""A key: a function, the ``Site`` of the innermost module call, and the code and
instruction of each frame between the two, or between the function and the block."""


class Running:
    """A function of torch that runs now: one object for each call."""

    __slots__ = ("args", "frame", "function", "located")

    def __init__(self, function: Any, frame: Any, args: Sequence[Any] = ()) -> None:
        self.function = function
        self.frame = frame
        self.args = args
        self.located: Located | None = None


class CallSites:
    """Interns call sites, and knows which function of torch runs now.

    Attributes:
        running: The function of torch that runs now, or None. The caller assigns and
            restores it, as a method would be one more Python call each time.
    """

    def __init__(
        self,
        cell_file: str,
        top: CodeType | None,
        number_of_module: Callable[[nn.Module], int],
    ) -> None:
        self.running: Running | None = None
        self._top = top
        self._cell_file = cell_file
        self._number_of_module = number_of_module
        self._kinds = FrameKinds(cell_file, top)
        self._positions: list[tuple[CodeType, Span]] = []
        self._described: list[SourcePosition] = []
        self._position_by_key: dict[tuple[int, int], int] = {}
        self._line_by_position = [0]
        self._keys: list[CallSiteKey] = []
        self._built: list[CallSite] = []
        self._located_by_calls: dict[Calls, tuple[Located, Located]] = {}
        self._site_by_key: dict[tuple[object, int, int, int], int] = {}
        self._backward_by_key: dict[tuple[object, int], int] = {}

    @property
    def function(self) -> object:
        """The torch function that runs now, None outside of any."""
        return None if self.running is None else self.running.function

    @property
    def frame(self) -> FrameType | None:
        """The frame that called the function."""
        return None if self.running is None else self.running.frame

    def locate_operator(self, entry: FrameType | None, site: Site) -> Located:
        """Return the call site of the operator that is called now, and its owner."""
        running = self.running
        if running is None:
            return self._locate(None, sys._getframe(2), (), entry, site)[0]
        located = running.located
        if located is None:
            function, frame = running.function, running.frame
            calls: Calls = (function, site)
            top, inner = self._top, frame
            while inner is not entry:
                code = inner.f_code
                calls += (id(code), inner.f_lasti)
                if code is top or inner.f_back is None:
                    break
                inner = inner.f_back
            known = self._located_by_calls.get(calls)
            if known is None:
                known = self._locate(function, frame, calls, entry, site)
            located, running.located = known
        return located

    def find_known(
        self, function: Any, frame: FrameType, entry: FrameType | None, site: Site
    ) -> tuple[Located, Located] | None:
        """Return the call site of a function's first operator, and of others, if known.

        For functions that run no operator: ``locate_operator`` finds it otherwise.
        """
        calls: Calls = (function, site)
        top, inner = self._top, frame
        while inner is not entry:
            code = inner.f_code
            calls += (id(code), inner.f_lasti)
            if code is top or inner.f_back is None:
                break
            inner = inner.f_back
        return self._located_by_calls.get(calls)

    def locate_backward(self) -> int:
        """Return the call site of a backward operator without a forward one."""
        frame = self.frame or sys._getframe(2)
        position, line, flags, _ = self.walk(frame, None, (0, 0))
        key = CallSiteKey(self.function, position, line, flags | BACKWARD)
        return self._intern(key)

    def _locate(
        self,
        function: object,
        frame: FrameType,
        calls: Calls,
        entry: FrameType | None,
        site: Site,
    ) -> tuple[Located, Located]:
        """Return the call site of a call, for its first operator and for the others."""
        position, line, flags, owner = self.walk(frame, entry, site)
        flags |= FORWARD if calls and entry is not None else 0
        number = self._intern(CallSiteKey(function, position, line, flags))
        located = (number, owner, 0), (number, owner, GOES_ON)
        # Of constructors the owner differs from call to call.
        if calls and not flags & INIT:
            self._located_by_calls[calls] = located
        return located

    def backward_of(self, forward_site: int) -> int:
        """Return the call site of a backward operator, by that of its forward one."""
        key = (self.function, forward_site)
        backward = self._backward_by_key.get(key)
        if backward is None:
            forward = self._keys[forward_site - 1]
            own = forward._replace(function=self.function, flags=BACKWARD)
            backward = self._backward_by_key[key] = self._intern(own)
        return backward

    def current_line(self) -> int | None:
        """Return the line of the cell that is running now, for a message.

        It interns no position: whether a message is shown may depend on time.
        """
        frame: FrameType | None = self.frame or sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self._cell_file:
            frame = frame.f_back
        return None if frame is None else frame.f_lineno

    def find_error_line(self, error: BaseException | None) -> int | None:
        """Return the innermost line of the cell in the traceback of an error."""
        frames = traceback.walk_tb(error.__traceback__ if error else None)
        lines = [n for f, n in frames if f.f_code.co_filename == self._cell_file]
        return lines[-1] if lines else None

    def locate_raised(
        self, function: object, entries: Sequence[TracebackType], flags: int
    ) -> tuple[int, int]:
        """Return call site and owner of a call that raised, by the traceback to it."""
        position = line = owner = 0
        for entry in reversed(entries):
            frame = entry.tb_frame
            kind = self._kinds.classify(frame)
            flags |= kind & KINDS
            if kind & USER and not (position and line):
                found = self._position(frame.f_code, entry.tb_lasti)
                position = position or found
                line = line or (self._line_by_position[found] if kind & CELL else 0)
            if kind & MODULE and not owner:
                owner = self._find_owner(frame)
        return self._intern(CallSiteKey(function, position, line, flags)), owner

    def walk(
        self, frame: FrameType | None, entry: FrameType | None, site: Site
    ) -> tuple[int, int, int, int]:
        """Return position, line of the cell, kinds of the frames, and owner."""
        position = line = flags = owner = 0
        kind_of, sought = self._kinds.by_code.get, MODULE | KINDS
        while frame is not None and frame is not entry:
            kind = kind_of(id(frame.f_code))
            if kind is None:
                kind = self._kinds.classify(frame)
            if found := kind & sought:
                flags |= found
                if found & (USER | CELL):
                    here = self._position(frame.f_code, frame.f_lasti)
                    position = position or here
                    line = self._line_by_position[here] if found & CELL else line
                if found & MODULE:
                    owner = self._find_owner(frame)
                    found = found if owner else found & KINDS
                if found & TOP:
                    self._top = frame.f_code
                if found & TOP or (line and entry is not None):
                    break
                sought &= ~found
            frame = frame.f_back
        return position or site[0], line or site[1], flags & KINDS, owner

    def _find_owner(self, frame: FrameType) -> int:
        module = self._kinds.find_module(frame)
        return 0 if module is None else self._number_of_module(module) << 1 | 1

    def build_positions(self) -> tuple[SourcePosition, ...]:
        """Return the plain records of all positions."""
        done = self._described
        done += starmap(describe_position, self._positions[len(done) :])
        return tuple(done)

    def build_call_sites(
        self, positions: tuple[SourcePosition, ...]
    ) -> tuple[CallSite, ...]:
        """Return the plain records of all call sites."""
        done = self._built
        done += (
            CallSite(
                function=describe_function(key.function),
                position=positions[key.position - 1] if key.position else None,
                line=key.line or None,
                phase=phase_of(key.flags),
            )
            for key in self._keys[len(done) :]
        )
        return tuple(done)

    def _intern(self, key: CallSiteKey) -> int:
        number = self._site_by_key.get(key)
        if number is None:
            self._keys.append(key)
            number = self._site_by_key[key] = len(self._keys)
        return number

    def _position(self, code: CodeType, instruction: int) -> int:
        key = (id(code), instruction)
        position = self._position_by_key.get(key)
        if position is None:
            span = list_spans(code)[max(instruction, 0) // 2]
            self._positions.append((code, span))
            position = self._position_by_key[key] = len(self._positions)
            self._line_by_position.append(span[0])
        return position


class WarningLines(Replacements):
    """Context manager in which warnings of torch have the line that called torch.

    Without it ``F.softmax(x)`` warns at a line of ``function_mode.py``.
    """

    def __enter__(self) -> None:
        self.replace_all(warnings, {SHOW: show_at_caller})


SHOW: Final = "_showwarnmsg"
"""What Python calls for each warning to be shown, also in ``catch_warnings``."""

show: Callable[[warnings.WarningMessage], None] = getattr(warnings, SHOW)


def show_at_caller(warning: warnings.WarningMessage) -> None:
    """Show a warning; one from a file of this package is shown at the user's line."""
    frame = inspect.currentframe() if warning.filename.startswith(PACKAGE) else None
    while frame is not None and frame.f_code.co_filename.startswith(OWN):
        if frame.f_code.co_filename == warning.filename:  # it may come from other lines
            frame.f_globals.get(REGISTRY, {}).clear()
        frame = frame.f_back
    if frame is None:
        show(warning)
        return
    vars(warnings)["onceregistry"].pop((str(warning.message), warning.category), None)
    warnings.warn_explicit(
        warning.message,
        warning.category,
        frame.f_code.co_filename,
        frame.f_lineno,
        frame.f_globals.get("__name__"),
        frame.f_globals.setdefault(REGISTRY, {}),
        source=warning.source,
    )


REGISTRY: Final = "__warningregistry__"
"""Where Python notes which warnings the lines of a module gave."""
