"""Complete the options on the ``%%meta`` line, and leave the body alone."""

from collections.abc import Callable, Sequence
from typing import Any

try:
    from IPython.core.completer import SimpleCompletion, context_matcher

    HAS_MATCHERS = True
except ImportError:  # IPython 7
    HAS_MATCHERS = False

__all__ = ["build_matcher"]


def build_matcher(options: Sequence[str]) -> Callable[..., Any] | None:
    """Return a completer for ``options``; None where IPython has no such thing."""
    if not HAS_MATCHERS:
        return None

    @context_matcher()  # type: ignore[untyped-decorator]
    def match_meta_options(context: Any) -> dict[str, Any]:
        is_ours = context.full_text.split()[:1] in (["%%meta"], ["%meta"])
        if context.cursor_line != 0 or not is_ours:
            return {"completions": [], "suppress": False}
        typed = context.text_until_cursor.split(" ")[-1]
        found = [o for o in options if typed.startswith("-") and o.startswith(typed)]
        return {
            "completions": [SimpleCompletion(o, type="param") for o in found],
            "matched_fragment": typed,
            "suppress": bool(found),
        }

    return match_meta_options  # type: ignore[no-any-return]
