"""Blocks that cannot be run again, odd code, and explanations that fail themselves."""

import contextlib
import os

import pytest
import torch

from meta_magic import record
from meta_magic.errors import MissingValueError
from meta_magic.explain.probing import Probe, Variable
from meta_magic.trace.failed_call import FailedCall
from meta_magic.trace.signature import TensorArgument
from tests.conformance.explanations import record_cell
from tests.unit.explain.made_situations import make_operand

HEAD = "import torch\n"
DECORATED = """
def decorate(f):
    def g(*a):
        return f(*a)
    return g
@decorate
def h(x):
    return x @ x
h(torch.ones(2, 3))
"""
FAILING = "torch.ones(2, 3) @ torch.ones(2, 3)"
RULE = "must equal dimension 0 of torch.ones(2, 3) (2)"


def explain(text):
    """Return what is said of a program that fails, whose own first line is 2."""
    return record_cell(HEAD + text, "<failed cell>").explanation


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("open('{path}', 'w').close()", "it writes the file"),
        ("import subprocess\nsubprocess.run(['true'])", "it starts a process"),
        (
            "import socket\nsocket.socket().connect_ex(('127.0.0.1', 9))",
            "it uses the network",
        ),
    ],
)
def test_a_block_with_effects_is_not_run_again_and_the_reason_is_shown(
    text, reason, tmp_path
):
    path = tmp_path / "written"
    found = explain(f"{text.format(path=path)}\n{FAILING}")
    path.unlink(missing_ok=True)
    assert found.rules[0].endswith(RULE)
    assert f"\nno repairs were tried: {reason}" in found.text
    assert not path.exists()


@pytest.mark.parametrize(
    "text",
    [
        "print('printed', flush=True)",
        "import os\nos.write(1, b'printed')",
        "import threading\nthreading.Thread(target=print, args=('printed',)).start()",
        "from matplotlib import pyplot as p\np.plot([1, 2])\np.show()\np.close()",
    ],
)
def test_a_block_that_prints_plots_or_starts_threads_is_repaired_in_silence(
    text, capfd
):
    found = explain(f"{text}\n{FAILING}")
    assert found.rules[0].endswith(RULE)
    assert found.repairs
    assert capfd.readouterr().out.count("printed") <= 1  # what it printed itself


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("a = torch.ones(2, 3); b = a @ a; c = 1", "a @ a"),
        ("f = lambda x: x @ x\nf(torch.ones(2, 3))", "x @ x"),
        ("xs = [torch.ones(2, 3)]\n[x @ x for x in xs]", "x @ x"),
        (DECORATED, "x @ x"),
        ("exec('x = torch.ones(2, 3)\\nx @ x')", ""),
    ],
)
def test_code_of_any_form_has_its_expression(text, expression):
    found = explain(text)
    assert found.expression == expression
    assert len(found.given) == 1
    assert len(found.rules) == 1


def test_what_calls_a_function_of_torch_does_not_name_its_operands():
    found = explain(
        "import functools\na, b = torch.ones(2, 3), torch.tensor([1.0])\n"
        "functools.reduce(torch.matmul, [a, b])"
    )
    assert not any("matmul" in name for name in found.operands)


@pytest.mark.parametrize(
    "text",
    [
        "import json\njson.loads('{')",
        "def f(x):\n    return f(x)\nf(torch.ones(2))",
        "next(iter([]))",
        "class E(Exception):\n    def __str__(self):\n        raise OSError\nraise E",
    ],
)
def test_errors_that_torch_has_no_part_in_have_no_rules(text):
    found = explain(text)
    assert found.line is not None
    assert (found.rules, found.repairs) == ((), ())
    assert len(found.text.splitlines()) <= 25


@pytest.mark.parametrize(
    "ending", ["raise KeyboardInterrupt", "raise SystemExit", "torch.empty(2).tolist()"]
)
def test_an_end_that_no_operand_is_to_blame_for_is_not_explained(ending):
    suppressed = contextlib.suppress(KeyboardInterrupt, SystemExit, MissingValueError)
    with suppressed, record() as trace:
        model = torch.nn.Linear(2, 2)
        model.register_forward_hook(lambda *_: exec(ending, globals()))
        model(torch.ones(1, 2))
    assert trace.error is not None
    assert trace.explanation is None


def test_a_matrix_that_has_no_inverse_has_no_rule_of_indexes():
    assert explain("import torch\ntorch.linalg.inv(torch.zeros(3, 3))").rules == ()


def test_a_call_that_ends_the_process_is_refused():
    def call(x):
        if x.shape[0] != 4:
            os.abort()
        return x

    failed = FailedCall(
        function=call,
        args=(TensorArgument(0),),
        kwargs={},
        operands=(make_operand("x", (3,)),),
        is_whole=True,
        frames=(),
    )
    probe = Probe(call, failed, lambda run: run(), is_careful=True)
    assert not probe.accepts()
    assert probe.run({Variable(0, 0): 4}) == ((4,),)


def test_a_layer_that_fits_in_no_memory_is_called_again_without_any():
    found = explain(
        "lstm = torch.nn.LSTM(10**7, 10**7)\nlstm(torch.ones(5, 3, 10**7 + 1))"
    )
    assert "dimension 2 of" in found.rules[0]
