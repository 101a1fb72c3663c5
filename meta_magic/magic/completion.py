"""Complete the options on the ``%%meta`` line, and leave the body alone."""

from collections.abc import Callable, Sequence
from typing import Any

try:
    from IPython.core.completer import SimpleCompletion, context_matcher

    HAS_MATCHERS = True
except ImportError:  # IPython 7
    HAS_MATCHERS = False

__all__ = ["build_matcher"]


def build_matcher(
    options: Sequence[str], command: str, command_options: Sequence[str]
) -> Callable[..., Any] | None:
    """Return a completer; None where IPython has no such thing.

    Args:
        options: What it offers after ``%%meta`` and ``%meta``.
        command: The word after ``%meta`` that has options of its own.
        command_options: Those.
    """
    if not HAS_MATCHERS:
        return None

    @context_matcher()  # type: ignore[untyped-decorator]  # IPython's has no types
    def match_meta_options(context: Any) -> dict[str, Any]:
        words = context.full_text.split()[:2]
        if context.cursor_line != 0 or words[:1] not in (["%%meta"], ["%meta"]):
            return {"completions": [], "suppress": False}
        typed = context.text_until_cursor.split(" ")[-1]
        known = command_options if words == ["%meta", command] else options
        found = [o for o in known if typed.startswith("-") and o.startswith(typed)]
        return {
            "completions": [SimpleCompletion(o, type="param") for o in found],
            "matched_fragment": typed,
            "suppress": bool(found),
        }

    return match_meta_options  # type: ignore[no-any-return]  # as above
