"""Record a text as ``%%meta`` records a cell, without a shell."""

import linecache
import sys
from dataclasses import replace
from types import ModuleType

import torch

from meta_magic.session.recording import Recording
from meta_magic.trace.notes import CellSource
from meta_magic.trace.options import Options
from meta_magic.trace.rerun import list_names, make_rerun
from meta_magic.trace.trace import Trace


def run_cell(text: str, title: str) -> Trace:
    """Return the recording of a text; its variables stay in a module of their own."""
    name = f"<{title}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    module = sys.modules["__cell__"] = ModuleType("__cell__")
    variables, code = vars(module), compile(text, name, "exec")
    rerun = make_rerun(
        text=text,
        file=name,
        of_module=variables,
        variables=variables,
        names=list_names(code),
        options=Options(),
    )
    recording, raised = Recording(name, namespace=variables), None
    torch.manual_seed(0)
    try:
        recording.guard.run(lambda: exec(code, variables))
    except Exception as error:
        raised = error
    trace = recording.finish(raised, variables, CellSource(text=text, file=name))
    return replace(trace, rerun=rerun)
