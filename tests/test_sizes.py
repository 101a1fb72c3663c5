"""The alarm for size: a file or a function that grew too large is to be looked at.

That of JavaScript is in ``test_javascript``.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = sorted([*ROOT.glob("meta_magic/**/*.py"), *ROOT.glob("tests/**/*.py")])
MAX_LINES = 600
MAX_FUNCTION_LINES = 80


def name_of(path):
    """Return a file's path within the repository."""
    return path.relative_to(ROOT).as_posix()


def test_no_file_is_over_the_alarm():
    sizes = {p: len(p.read_text("utf-8").splitlines()) for p in FILES}
    assert {name_of(p): n for p, n in sizes.items() if n > MAX_LINES} == {}


def test_no_function_is_over_the_alarm():
    sizes = {
        f"{name_of(path)}:{node.lineno} {node.name}": node.end_lineno - node.lineno + 1
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {k: n for k, n in sizes.items() if n > MAX_FUNCTION_LINES} == {}


def test_the_readme_is_what_a_user_needs_and_no_more():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150
