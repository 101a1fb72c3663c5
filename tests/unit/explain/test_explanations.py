"""An explanation: the lines, the operands by the user's names, the module, the text."""

import pickle
from dataclasses import replace

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.explain import diagnosis
from tests.conformance.explanations import record_cell


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(400, 10)
        self.layers = nn.Sequential(nn.Linear(8, 6), nn.Linear(5, 4))
        self.state = {"h": [torch.ones(2, 3)]}

    def forward(self, x):
        return self.fc(x)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)

    def forward(self, x):
        mask = (x[..., 0] == 0).T
        return self.layer(x, src_key_padding_mask=mask)


def explain(run):
    """Return what is said of a function that fails."""
    with pytest.raises(Exception), record() as trace:  # noqa: B017, PT011  torch's
        run(Classifier())
    return trace.explanation


def test_operands_have_the_names_of_the_failing_expression_and_of_the_module():
    found = explain(lambda model: model(torch.ones(4, 800)))
    assert [o.name for o in found.given] == ["x", "self.fc.weight", "self.fc.bias"]
    assert "model.fc.weight" in found.operands
    assert found.expression == "self.fc(x)"
    assert found.module.startswith("Linear `")
    assert found.callers[-1][1] == "model(torch.ones(4, 800))"


def test_the_line_is_that_of_the_failing_expression():
    found = explain(lambda model: model(torch.ones(4, 800)))
    assert found.line == Classifier.forward.__code__.co_firstlineno + 1


def test_a_call_is_shown_with_the_name_that_it_alone_is_assigned_to():
    def run(_):
        whole = torch.stack([torch.ones(2), torch.ones(3)])  # of two
        whole.sum()

    def run_part(_):
        part = torch.ones(2) @ torch.ones(3) + 1
        part.sum()

    assert explain(run).expression.startswith("whole = torch.stack([")
    assert explain(run_part).expression == "torch.ones(2) @ torch.ones(3)"


def test_a_long_chain_ends_with_the_number_that_was_written():
    found = record_cell(
        "import torch\nx = torch.ones(1, 3, 100, 100)\nfor _ in range(4):\n"
        "    x = torch.nn.functional.max_pool2d(x, 2)\nx @ torch.ones(5, 2)",
        "<failed cell>",
    ).explanation
    written = "      100 = in torch.ones(1, 3, 100, 100), written (line 2)"
    assert found.text.split("\n      ...\n")[1].startswith(written)


def test_of_tensors_with_equally_many_dimensions_no_other_number_is_asked_for():
    rules = explain(lambda _: torch.ones(2, 2, 6, 1) @ torch.ones(2, 6, 2, 1)).rules
    assert rules
    assert not any("dimensions" in rule for rule in rules)


def test_each_of_several_sizes_has_its_place_as_name():
    rules = explain(lambda _: torch.zeros(10**13, 10**10)).rules
    assert [rule.split()[0] for rule in rules] == ["size[0]", "size[1]"]


def test_a_module_that_still_runs_has_returned_nothing():
    found = explain(lambda _: Masked()(torch.ones(6, 21, 8)))
    assert not any("returned" in one.name for one in found.given)


def test_a_module_that_checks_its_input_itself_has_its_operands():
    found = explain(lambda _: nn.LSTM(3, 4)(torch.ones(5, 2, 7)))
    assert [o.name for o in found.given] == ["torch.ones(5, 2, 7)"]
    assert found.rules == (
        "dimension 2 of torch.ones(5, 2, 7) (7) must equal LSTM.input_size (3)",
    )


def test_a_module_that_is_not_made_yet_hides_no_other_names():
    class Half(nn.Module):
        def __init__(self):
            x, y = torch.ones(2), torch.ones(3)
            x + y

    found = explain(lambda _: Half())
    assert [o.name for o in found.given] == ["x", "y"]
    found = explain(lambda _: torch.add(Half.__new__(Half), torch.ones(3)))
    assert found.expression == "torch.add(Half.__new__(Half), torch.ones(3))"


def test_an_error_of_the_users_own_has_its_line_and_no_rule():
    found = explain(lambda _: {}["x"])
    assert found.expression == '{}["x"]'
    assert (found.given, found.rules) == ((), ())


def test_the_text_is_short_and_has_each_operand_on_a_line():
    found = explain(lambda model: model(torch.ones(4, 800)))
    lines = found.text.splitlines()
    assert len(lines) <= 25
    assert "    x               (4, 800) float32" in lines
    assert str(found) == f"{found.error}\n{found.text}"


def test_an_explanation_that_fails_says_so(monkeypatch):
    monkeypatch.setattr(diagnosis, "find_rules", None)
    monkeypatch.setattr(diagnosis, "ask_child", lambda probe, *_: probe())
    monkeypatch.setattr(diagnosis, "leave_dynamo_out", lambda: None)  # not in a child
    found = explain(lambda model: model(torch.ones(4, 800)))
    assert found.rules[0].startswith("This could not be explained: TypeError")


def test_without_children_the_operands_are_named_all_the_same(monkeypatch):
    monkeypatch.setattr(diagnosis, "can_fork", lambda: False)
    found = explain(lambda model: model(torch.ones(4, 800)))
    assert found.given
    assert found.rules == ()


def test_an_argument_that_is_no_plain_data_is_not_probed():
    generator = torch.Generator()
    found = explain(lambda _: torch.ones(3).normal_(0, -1, generator=generator))
    assert found.rules == ()


def test_a_trace_that_was_kept_has_no_call_to_explain():
    with pytest.raises(RuntimeError), record() as trace:
        Classifier()(torch.ones(4, 800))
    assert pickle.loads(pickle.dumps(trace)).explanation is None


def test_nothing_of_the_users_is_kept_alive():
    import gc
    import weakref

    def run():
        with pytest.raises(RuntimeError), record() as trace:
            model = Classifier()
            refs.append(weakref.ref(model))
            model(torch.ones(4, 800))
        assert trace.explanation.rules
        return trace

    refs = []
    trace = run()
    gc.collect()
    assert refs[0]() is None
    assert trace.explanation.given


LONG = "\n".join(
    [
        "import torch",
        *(f"def f{n}(*x):\n    return f{n - 1}(*x)" for n in range(9, 0, -1)),
        "def f0(*x):\n    return torch.cat(x)",
        "f9(*[torch.ones(2, n) for n in range(3, 15)])",
    ]
)


def test_it_has_at_most_25_lines_and_says_what_is_left_out():
    found = record_cell(LONG, "<long>").explanation
    assert len(found.callers) == 10
    assert len(found.given) == 12
    assert len(found.text.splitlines()) <= 25
    assert "    and 4 more" in found.text.splitlines()


def test_rules_and_repairs_stand_longest():
    found = record_cell(LONG, "<long>").explanation
    short = record_cell(
        "import torch\ntorch.ones(2, 3) @ torch.ones(2, 3)", "<short>"
    ).explanation
    full = replace(
        found,
        rules=tuple(f"rule {n}" for n in range(4)),
        lineages=short.lineages,
        repairs=short.repairs * 3,
    )
    lines = full.text.splitlines()
    assert len(lines) <= 25
    assert "  rule 0" in lines
    assert "repairs that ran" in lines
    assert "    ..." in lines
