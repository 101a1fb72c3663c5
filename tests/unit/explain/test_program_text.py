"""Stretches of a program: nothing but what is meant is rewritten."""

import ast

import pytest

from meta_magic.explain.edits.program_text import Program, apply_edit, read_number

CALLS = """\
a = f(1)
b = f(
    1,  # one
    2,
)
c = f(
    (1)
)
d = f()
e = f(1, )
"""


def add(at):
    """Return the program with an argument more for one of its calls."""
    program = Program(CALLS)
    (edit,) = program.add_argument(program.calls[at].node, "k=3", 0)
    return apply_edit(CALLS, edit)


def test_an_argument_is_added_where_the_last_one_ends():
    assert "a = f(1, k=3)" in add(0)
    assert "    2, k=3,\n)" in add(1)
    assert "d = f(k=3)" in add(3)
    assert "e = f(1, k=3)" in add(4)


def test_a_program_with_an_argument_more_is_one():
    for at in (0, 1, 3, 4):
        calls = [n for n in ast.walk(ast.parse(add(at))) if isinstance(n, ast.Call)]
        assert [k.arg for call in calls for k in call.keywords] == ["k"]


@pytest.mark.parametrize(
    ("text", "template", "made"),
    [
        ("y = a + b", "{}.T", "y = (a + b).T"),
        ("y = f(a)", "{}[0]", "y = f(a)[0]"),
        ("y = f(a)", "2 * {}", "y = 2 * f(a)"),
        ("y = a + b", "2 * {}", "y = 2 * (a + b)"),
        ("y = a + b", "g({})", "y = g(a + b)"),
        ("é = ü", "{}.T", "é = ü.T"),
    ],
)
def test_brackets_stand_where_python_needs_them(text, template, made):
    program = Program(text)
    value = program.find(ast.Assign)[0].value
    (edit,) = program.extend(value, template, 0)
    assert apply_edit(text, edit) == made


def test_a_part_of_a_product_stays_one():
    text = "y = a * n"
    program = Program(text)
    (edit,) = program.extend(program.find(ast.BinOp)[0].right, "{} + 1", 0)
    assert apply_edit(text, edit) == "y = a * (n + 1)"


def test_what_is_assigned_to_is_not_extended():
    program = Program("x = 1")
    (target,) = program.find(ast.Name)
    assert [*program.extend(target, "{}.T", 0)] == []


def test_what_stands_in_a_text_is_left():
    program = Program("x = f'{a} {b}'")
    for name in program.find(ast.Name)[1:]:
        assert [*program.replace(name, "c", 0)] == []
        assert [*program.extend(name, "{}.T", 0)] == []


def test_only_lines_that_matter_have_nodes():
    program = Program("a = 1\nb = 2", {2})
    assert [node.value for node in program.find(ast.Constant)] == [2]
    assert [node.id for node in program.find(ast.Name)] == ["b"]


@pytest.mark.parametrize(
    ("text", "number"),
    [("16 * 5 * 5", 400), ("-3", -3), ("True", None), ("2 * n", None), ("2 + 3", None)],
)
def test_a_product_of_numbers_is_one(text, number):
    assert read_number(ast.parse(text, mode="eval").body) == number
