"""Complete the line of ``%%meta`` and ``%meta``: options, values, paths of modules.

``%meta materialize model.la<TAB>`` gives ``model.layers``. IPython completes the body
of a cell. Read :meth:`LineCompleter.find` first.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

try:
    from IPython.core.completer import SimpleCompletion, context_matcher

    HAS_MATCHERS = True
except ImportError:  # before IPython 8.6
    HAS_MATCHERS = False


MAGICS: Final = ("%%meta", "%meta")
ASSIGNED: Final = re.compile(r"\s*([\w.,\s]+=)?\s*(?=%meta\s)")
"""Text that may precede ``%meta``."""

HOOK: Final = "complete_command"
"""The hook that IPython calls before it has matchers."""

Values = Mapping[str, Sequence[str]]
"""Options, each with the values that completion offers."""


class LineCompleter:
    """Completes lines of the magics while it is installed."""

    def __init__(
        self,
        shell: Any,
        options: Values,
        commands: Sequence[str],
        list_command_options: Callable[[], Values],
    ) -> None:
        """Install it.

        The first of the commands takes the path of a module, and has its own options.
        """
        self._shell = shell
        self._options = options
        self._commands = commands
        self._list_command_options = list_command_options
        if HAS_MATCHERS:
            ask = lambda context: self.match(context)  # noqa: E731, PLW0108  IPython sets attributes of it, which a method refuses
            self._matcher = context_matcher()(ask)
            shell.Completer.custom_matchers.append(self._matcher)
            return
        for magic in MAGICS:
            shell.set_hook(HOOK, self.answer_hook, str_key=magic)

    def remove(self) -> None:
        """Uninstall it."""
        if HAS_MATCHERS:
            self._shell.Completer.custom_matchers.remove(self._matcher)
            return
        for magic in MAGICS:
            self._shell.strdispatchers[HOOK].strs.pop(magic, None)

    def match(self, context: Any) -> dict[str, Any]:
        """Return completions as IPython's matchers do."""
        line = context.text_until_cursor
        is_body = context.cursor_line > 0 and line.startswith(MAGICS[0])
        typed, found = ("", []) if is_body else self.find(line)
        return {
            "completions": [SimpleCompletion(text, type="param") for text in found],
            "matched_fragment": typed,
            "suppress": bool({*found} - {*self._commands}),
        }

    def answer_hook(self, _shell: Any, event: Any) -> list[str]:
        """Return completions as IPython's hooks do, which cut words at ``=``."""
        typed, found = self.find(event.text_until_cursor)
        n_before = len(typed) - len(event.symbol)
        return [text[n_before:] for text in found]

    def find(self, line: str) -> tuple[str, list[str]]:
        """Return the last word of a line, and its completions."""
        *words, typed = ASSIGNED.sub("", line).split(" ")
        magic, *before = [*filter(None, words)] or [""]
        if magic not in MAGICS:
            return "", []
        is_command = magic == "%meta" and before[:1] == [self._commands[0]]
        options = self._list_command_options() if is_command else self._options
        option, equals, _ = typed.partition("=")
        if equals and option in options:
            found = [f"{option}={text}" for text in options[option]]
        elif before and options.get(before[-1]):
            found = [*options[before[-1]]]
        elif typed.startswith("-"):
            found = [*options]
        elif is_command and len(before) == 1:
            found = complete_path(self._shell.user_ns, typed)
        else:
            found = [*self._commands] if magic == "%meta" and not before else []
        return typed, [text for text in found if text.startswith(typed)]


MAX_LOOK: Final = 100
"""Items of a list or dict that are searched for a module."""


def complete_path(namespace: Mapping[str, Any], typed: str) -> list[str]:
    """Return the paths of modules that begin with the typed text, one level deeper.

    It searches only lists, dicts and modules, without calling methods of their classes:
    completion must not run the user's code.
    """
    if "torch" not in sys.modules:
        return []
    known = {
        name: value
        for name, value in list(namespace.items())
        if (typed[:1] == "_" or name[:1] != "_") and has_modules(value)
    }
    while True:
        inside = [path for path in known if typed.startswith((f"{path}.", f"{path}["))]
        if not inside:
            return [path for path in known if path.startswith(typed)]
        path = max(inside, key=len)
        known = {path + step: below for step, below in list_steps(known[path]).items()}


def list_steps(value: Any) -> dict[str, Any]:
    """Return the children of a module, list or dict by ``.name`` or ``[index]``."""
    from meta_magic.materializing.targets import write_step  # noqa: PLC0415  torch
    from meta_magic.session.operand_names import walk_held  # noqa: PLC0415
    from meta_magic.torch_private.module_internals import children_of  # noqa: PLC0415

    if not is_module(value):
        return {step: held for step, held in walk_held(value) if has_modules(held)}
    try:
        children = children_of(value)
    except AttributeError:  # its class did not call super().__init__()
        return {}
    return {write_step(value, n): m for n, m in children.items() if m is not None}


def has_modules(value: object) -> bool:
    """Whether a value is a module, or a list or dict that begins with modules."""
    from meta_magic.session.operand_names import walk_held  # noqa: PLC0415  torch

    if is_module(value):
        return True
    if not issubclass(type(value), list | tuple | dict):
        return False
    return any(is_module(held) for _, held in islice(walk_held(value), MAX_LOOK))


def is_module(value: object) -> bool:
    """Whether a value is a module; ``isinstance`` could run code of its class."""
    from torch import nn  # noqa: PLC0415  is there already

    return issubclass(type(value), nn.Module)
