"""Operands that are written otherwise, where the call accepts that."""

from meta_magic.explain.edits.accepted import Accepted, Accepting
from meta_magic.explain.edits.operand_edits import edit_operands
from tests.unit.explain.made_situations import make_situation, write_edits


def edit(text, *changes, names=("x",), error="RuntimeError"):
    operands = [(name, (4, 3)) for name in names]
    made = make_situation(
        text, operands=operands, error=error, accepted=Accepted(changes=changes)
    )
    return write_edits(made, edit_operands(made))


def test_an_operand_is_changed_where_it_is_given():
    assert edit("y = f(x)", Accepting(((0, "{}.long()"),))) == ["y = f(x.long())"]


def test_an_expression_is_found_however_it_is_written():
    made = edit('y = f(a["k"],b)', Accepting(((0, "{}.T"),)), names=["a['k']"])
    assert 'y = f(a["k"].T,b)' in made


def test_what_was_turned_may_be_turned_back():
    made = edit("y = norm(x)", Accepting(((0, "{}.transpose(1, 2)"),)))
    assert made == [
        "y = norm(x.transpose(1, 2))",
        "y = norm(x.transpose(1, 2)).transpose(1, 2)",
    ]


def test_it_is_where_the_result_is_as_what_was_turned():
    turned = Accepting(((0, "{}.permute(0, 2, 3, 1)"),), keeps_shape=True)
    made = edit("y = norm(x)", turned)
    assert made[0] == "y = norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)"


def test_a_dimension_that_is_added_is_taken_away_again():
    made = edit("y = resize(x)", Accepting(((0, "{}.unsqueeze(1)"),)))
    assert made[0] == "y = resize(x.unsqueeze(1)).squeeze(1)"


def test_all_but_the_other_operands_of_a_formula_are_changed():
    change = Accepting(((1, "{}[..., None]"),))
    made = edit("y = (x - mean) / std", change, names=["x", "mean"])
    assert "y = (x - mean[..., None]) / std[..., None]" in made


def test_two_operands_are_changed_together():
    change = Accepting(((0, "{}.T"), (1, "{}.T")))
    assert edit("y = a @ b", change, names="ab") == ["y = a.T @ b.T"]


def test_what_makes_a_result_larger_than_all_operands_comes_last():
    small = Accepting(((0, "{}.flatten()"),))
    large = Accepting(((0, "{}.long()"),), is_as_large=False)
    assert edit("y = f(x)", large, small) == ["y = f(x.flatten())", "y = f(x.long())"]


def test_where_nothing_is_known_what_people_do_is_tried():
    made = edit("y = lstm(x)")
    assert {"y = lstm(x.T)", "y = lstm(x.unsqueeze(0))"} <= {*made}
