"""The house as it stands: its files, its floors, and who imports whom.

Every way to import counts: at the top, in a function, under ``TYPE_CHECKING``, and by
``import_module`` or a string that names a module of ours.
"""

import ast
from functools import cache
from pathlib import Path

import meta_magic

ROOT = Path(meta_magic.__file__).parent
FLOORS = (
    "errors",
    "torch_private",
    "children",
    "trace",
    "cost",
    "recording.identities",
    "recording.signatures",
    "recording.rows",
    "recording.as_device",
    "recording.intercept",
    "replaying",
    "session",
    "ranks",
    "trials",
    "explain",
    "materializing",
    "designs",
    "view",
    "teach",
    "magic",
    "pytest_plugin",
    "check",
    "__main__",
)
"""From the ground up. Folders inside of a floor are floors of their own, below it."""

UP = {
    (
        "replaying.verify",
        "trials.rank_runs",
    ): "verify(world=) runs a trace's code again",
    ("trace.trace", "magic.reports"): "Trace.show() is for users, who hold a trace",
    ("ranks.recorded_ranks", "magic.reports"): "Ranks.show(), as well",
    ("designs.differences", "magic.reports"): "Difference.show(), as well",
    ("trace.trace", "teach.lessons"): "Trace.teach(), as well",
    ("trace.questions", "trace.trace"): "a type alone: that of its own objects",
    ("trace.trace", "view.page"): "Trace.to_html(), as well",
    ("trace.trace", "view.payload"): "what marimo shows of a Trace, as well",
    ("trace.trace", "view.model_explorer"): "Trace.to_model_explorer(), as well",
    ("trials.slices", "magic.cell"): "a plain cell rests on the shell's cells",
    ("trials.sandbox", "magic.reports"): "a child of a kernel must not speak for it",
    ("trace.trace", "cost.costs"): "Trace.cost, as well",
    ("trace.trace", "cost.wrong.mistakes"): "Trace.notes and Trace.wrong, as well",
    ("trace.questions", "trials.dims"): "Trace.dims, as well",
    ("trace.questions", "trials.annotations"): "Trace.annotate(), as well",
    ("trace.trace", "explain.note_repairs"): "Trace.notes, as well",
    ("trace.questions", "explain.lineage.why"): "Trace.shape(), as well",
    ("trace.questions", "trials.fit"): "Trace.fit(), as well",
    ("trace.questions", "trials.sweeps"): "Trace.sweep(), as well",
    ("trace.trace", "cost.memory_timeline"): "Trace.memory, as well",
    ("trace.trace", "cost.step_times"): "Trace.step_time(), as well",
    ("trace.trace", "cost.program_columns"): "Trace.columns, for both of these",
    ("trace.trace", "cost.initialization"): "Trace.contents, as well",
    ("trace.questions", "trials.rank_runs"): "Trace.record_ranks(), as well",
    ("trace.questions", "ranks.recorded_ranks"): "the type of what it returns",
    ("trace.questions", "trials.proofs"): "Trace.advice, as well",
    ("trace.questions", "explain.across_cells"): "Trace.explanation, why() and check()",
    ("trace.questions", "explain.explanations"): "the type of what it returns",
    (
        "trace.questions",
        "explain.lineage.lineage_records",
    ): "a type alone: of Trace.why()",
    ("trace.questions", "cost.advice.evidence"): "a type alone: of Trace.advice",
    ("trace.graphs", "trace.trace"): "a type alone: it reads what Trace gives it",
    ("trace.modules", "trace.trace"): "a type alone, as well",
    ("trace.world", "trace.trace"): "a type alone, as well",
    ("trace.summary", "trace.trace"): "a type alone: it formats what Trace gives it",
}
"""The arrows that go up, or round, each with its reason."""

PATHS = sorted(ROOT.rglob("*.py"))


def name_of(path):
    """Return a file's module name within the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {name_of(path): path for path in PATHS}
OWN_NAMES = {f"meta_magic.{name}" for name in MODULES}


def floor_of(module):
    """Return the floor of a module, or -1 of the package itself, which is the top."""
    found = [f for f in FLOORS if module == f or module.startswith(f"{f}.")]
    assert found or module in {"", "recording"}, f"{module} is on no floor"
    return FLOORS.index(max(found, key=len)) if found else len(FLOORS)


def find_imports(tree):
    """Yield the full names of the modules that code imports, in whatever way."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and str(node.value) in OWN_NAMES:
            yield node.value


def find_own_imports(path):
    """Return the package's own modules that a file imports."""
    names = find_imports(ast.parse(path.read_text(encoding="utf-8")))
    own = {name.removeprefix("meta_magic.") for name in names if "meta_magic." in name}
    return {name for name in own if name in MODULES} - {name_of(path)}


@cache
def read_graph():
    """Return for each module which of the package's own modules it imports."""
    return {name: find_own_imports(path) for name, path in MODULES.items() if name}


def is_literal(call):
    """Whether a call, if it is one of ``import_module``, names a module in full."""
    if not ast.unparse(call.func).endswith("import_module"):
        return True
    names = [a.value for a in call.args if isinstance(a, ast.Constant)]
    return len(names) == len(call.args) == 1 and not names[0].startswith(".")
