"""What stands below a cell: the values of a cell that ran for real, and metadata."""

import re

import pytest

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("kernel_is_left_alone")]

METADATA = re.compile(r",\s+(device='meta'|size=\([\d, ]*\)|dtype=torch\.\w+)")


def values_in(text):
    """Return a text without what torch says after values on meta, nor its breaks."""
    return re.sub(r"[\s-]+", " ", METADATA.sub("", text))


SEED = "torch.manual_seed(0)\nx = torch.randn(2, 3)\n"

SHOWN = {
    "a tensor": "x",
    "a whole number": "torch.arange(3).sum()",
    "a list": "[x, x.sum(), 3]",
    "a dictionary": "{'a': x, 'b': {'c': x.int()}}",
    "a tuple": "x.max(1)",
    "a parameter": "nn.Linear(2, 2).weight",
    "parameters": "dict(nn.Linear(2, 2).named_parameters())",
    "a state dict": "nn.Linear(2, 2).state_dict()",
    "a module": "nn.Sequential(nn.Linear(2, 2), nn.ReLU())",
    "a gradient": "(nn.Linear(3, 2)(x) ** 2).mean()",
    "a text": "f'{x.mean():.3f} {x.sum()}'",
    "a table": "import pandas as pd\npd.DataFrame({'a': list(x[0]), 'b': [1, 2, 3]})",
    "an object": (
        "class Pair:\n"
        "    def __init__(self, a): self.a = a\n"
        "    def __repr__(self): return f'{self.a} {self.a.shape}'\n"
        "Pair(x)"
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown_has_the_values_of_the_cpu(kernel, name):
    wanted = kernel.run(SEED + SHOWN[name])
    met = kernel.run(f"%%meta -q\n{SEED}{SHOWN[name]}")
    assert met.status == "ok"
    assert values_in(met.value) == values_in(wanted.value)


def test_what_lies_on_the_cpu_by_name_is_shown_as_the_cpu_does(kernel):
    cell = "x = torch.arange(6, device='cpu').view(2, 3)\nx, x.float()"
    wanted = kernel.run(cell).value
    assert kernel.run(f"%%meta -q\n{cell}").value == wanted


def test_what_is_shown_again_has_its_values(kernel):
    number = kernel.run("%%meta -q\ntorch.arange(3)").content["execution_count"]
    wanted = "tensor([0, 1, 2], device='meta', size=(3,), dtype=torch.int64)"
    assert kernel.run(f"Out[{number}]").value == wanted
    assert wanted in str(kernel.run(f"display(Out[{number}])").outputs)


def test_what_takes_too_much_is_shown_without_values(kernel):
    run = kernel.run("%%meta -q\ntorch.ones(9999, 9999)")
    assert run.value == "tensor(..., device='meta', size=(9999, 9999))"


def test_what_was_written_since_is_shown_without_values(kernel):
    kernel.run("%%meta -q\nx = torch.ones(2)")
    kernel.run("x.add_(1)")
    assert kernel.run("x").value == "tensor(..., device='meta', size=(2,))"


def test_a_tensor_is_displayed_with_its_values_while_the_cell_runs(kernel):
    run = kernel.run("%%meta -q\nx = torch.ones(2)\ndisplay([x])\ny = x.zero_()")
    (shown,) = run.outputs
    text = "[tensor([1., 1.], device='meta', size=(2,))]"
    assert shown["data"]["text/plain"] == text


def test_a_trace_shows_its_report(kernel):
    kernel.run("%%meta -q -o trace\ntorch.ones(2)")
    run = kernel.run("trace")
    assert run.value is None
    assert [sorted(output["data"]) for output in run.plain_outputs] == [
        ["text/html", "text/plain"]
    ]
    assert kernel.run("[trace]").value == "[<Trace: 1 operators, 0 module trees>]"


def test_a_trace_of_a_block_shows_its_report(kernel):
    cell = (
        "import meta_magic as mm\nwith mm.record() as trace:\n    torch.ones(2)\ntrace"
    )
    (report,) = kernel.run(cell).reports
    assert "1 operator" in report["text/plain"]


def test_an_operator_call_is_short(kernel):
    kernel.run("%%meta -q -o trace\ntorch.ones(2)")
    wanted = "<OpCall 0: aten.ones.default -> float32 (2,), line 2>"
    assert kernel.run("trace.ops[0]").value == wanted
