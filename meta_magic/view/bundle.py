"""What a front end is given of a trace: text for terminals, HTML for notebooks."""

from typing import TYPE_CHECKING

from meta_magic.trace.summary import format_summary
from meta_magic.view.html import render_html

if TYPE_CHECKING:
    from meta_magic.trace.trace import Trace

__all__ = ["build_bundle"]


def build_bundle(trace: "Trace") -> dict[str, str]:
    """Return the mime bundle of a trace's report."""
    return {"text/plain": format_summary(trace), "text/html": render_html(trace)}
