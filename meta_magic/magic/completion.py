"""Complete the line of ``%%meta`` and ``%meta``, and leave the body alone."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from meta_magic.magic.module_paths import complete_path

try:
    from IPython.core.completer import SimpleCompletion, context_matcher

    HAS_MATCHERS = True
except ImportError:  # before IPython 8.6
    HAS_MATCHERS = False

__all__ = ["LineCompleter"]

MAGICS: Final = ("%%meta", "%meta")
ASSIGNED: Final = re.compile(r"\s*([\w.,\s]+=)?\s*(?=%meta\s)")
"""What may stand before ``%meta``."""

HOOK: Final = "complete_command"
"""IPython's name of the way by which it asks before it has matchers."""

Values = Mapping[str, Sequence[str]]
"""Options, each with the values that can be named."""


class LineCompleter:
    """What the shell asks for completions while it is installed."""

    def __init__(
        self,
        shell: Any,
        options: Values,
        commands: Sequence[str],
        list_command_options: Callable[[], Values],
    ) -> None:
        """Install it.

        Args:
            shell: The IPython shell.
            options: Those of both magics.
            commands: What ``%meta`` does besides statements; the first one takes the
                path of a module, and has options of its own.
            list_command_options: Returns those.
        """
        self._shell = shell
        self._options = options
        self._commands = commands
        self._list_command_options = list_command_options
        if HAS_MATCHERS:
            ask = lambda context: self.match(context)  # noqa: E731, PLW0108  a method takes no attributes, and it is given some
            self._matcher = context_matcher()(ask)
            shell.Completer.custom_matchers.append(self._matcher)
            return
        for magic in MAGICS:
            shell.set_hook(HOOK, self.answer_hook, str_key=magic)

    def remove(self) -> None:
        """Have the shell ask no more."""
        if HAS_MATCHERS:
            self._shell.Completer.custom_matchers.remove(self._matcher)
            return
        for magic in MAGICS:
            self._shell.strdispatchers[HOOK].strs.pop(magic, None)

    def match(self, context: Any) -> dict[str, Any]:
        """Answer as a matcher of IPython's."""
        line = context.text_until_cursor
        is_body = context.cursor_line > 0 and line.startswith(MAGICS[0])
        typed, found = ("", []) if is_body else self.find(line)
        return {
            "completions": [SimpleCompletion(text, type="param") for text in found],
            "matched_fragment": typed,
            "suppress": bool({*found} - {*self._commands}),
        }

    def answer_hook(self, _shell: Any, event: Any) -> list[str]:
        """Answer as a hook of IPython's, which has cut the word at = and the like."""
        typed, found = self.find(event.text_until_cursor)
        n_before = len(typed) - len(event.symbol)
        return [text[n_before:] for text in found]

    def find(self, line: str) -> tuple[str, list[str]]:
        """Return the word that ends a line, and what it may become."""
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
