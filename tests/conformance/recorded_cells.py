"""Record a text as ``%%meta`` records a cell, without a shell."""

import linecache
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from types import ModuleType
from typing import Any

import torch

from meta_magic.session.recording import Recording
from meta_magic.trace.notes import CellSource, EarlierCell
from meta_magic.trace.options import Options, list_names, make_rerun
from meta_magic.trace.trace import Trace


def split_programs(imports: str, text: str) -> dict[str, str]:
    """Return the programs of a text by their titles, each after its imports.

    A title is what follows ``# %%`` in a line of its own.
    """
    parts = re.split(r"^# %% (.*)\n", text, flags=re.MULTILINE)[1:]
    programs = (imports + part for part in parts[1::2])
    return dict(zip(parts[::2], programs, strict=True))


def record_cell(
    text: str,
    name: str,
    variables: dict[str, Any] | None = None,
    earlier: Sequence[EarlierCell] = (),
) -> Trace:
    """Return the recording of a program that is run as a cell."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    if variables is None:
        module = sys.modules["__cell__"] = ModuleType("__cell__")
        variables = vars(module)
    code = compile(text, name, "exec")
    rerun = make_rerun(
        text=text,
        file=name,
        of_module=variables,
        variables=variables,
        names=list_names(code),
        options=Options(),
    )
    assert rerun is not None
    rerun = replace(rerun, earlier=earlier)
    recording = Recording(name, namespace=variables)
    raised: BaseException | None = None
    torch.manual_seed(0)
    try:
        with redirect_stdout(StringIO()):
            recording.guard.run(lambda: exec(code, variables))
    except Exception as error:
        raised = error
    source = CellSource(text=text, file=name)
    return replace(recording.finish(raised, variables, source), rerun=rerun)
