"""A cell runs again in a child of the kernel, of which the front end hears nothing."""

import pytest

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("kernel_is_left_alone")]

CELL = """
%%meta -q
B = 4
model = nn.Linear(B, 2)
print("ran")
display("shown")
kept = "before" if "again" in globals() else "first"
again = model(torch.ones(B, B))
again
"""

ASK = """
from meta_magic.trials.trial import ask_trial
def shapes(trace, variables):
    return [call.outputs[0].shape for call in trace.ops][-1], variables["kept"]
"""


@pytest.fixture(autouse=True, scope="module")
def names_for_trials(kernel):
    assert kernel.run(ASK).status == "ok"


def test_a_cell_is_recorded_again_and_says_nothing(kernel):
    assert kernel.run(CELL.strip()).status == "ok"
    asked = kernel.run('ask_trial(_meta, shapes, {"B": 9})')
    assert asked.value == "((9, 2), 'first')"
    assert asked.stream("stdout") == asked.stream("stderr") == ""
    assert [out for out in asked.outputs if "shown" in str(out)] == []
    assert kernel.run("B, again.shape").value == "(4, torch.Size([4, 2]))"


def test_a_failed_cell_says_why_it_cannot(kernel):
    kernel.run("%%meta -q\nopen('out.txt', 'w').close()")
    asked = kernel.run("ask_trial(_meta, shapes)")
    assert "it writes the file 'out.txt'" in asked.traceback


def test_a_child_that_asks_the_user_is_refused(kernel):
    kernel.run("%%meta -q\nn = 2\nif n > 2: input('more?')")
    asked = kernel.run("ask_trial(_meta, shapes, {'n': 3})")
    assert "it asks for input" in asked.traceback
