"""The function and the module around a block, as code that it rests on."""

import importlib
import sys
from itertools import count
from textwrap import dedent

import pytest
import torch

NUMBERS = count()

HEAD = """
    import torch
    from torch import nn
    from meta_magic import record

    WIDTH = 16


    class Net(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.conv = nn.Conv2d(3, width, 3)
            self.fc = nn.Linear(400, 10)

        def forward(self, x):
            return self.fc(self.conv(x).flatten(1))

"""
N_LINES = HEAD.count("\n") - 1


@pytest.fixture
def explain(tmp_path, monkeypatch):
    """Write a module, call its ``run``, and return why the recording failed."""

    def run(code, *args):
        name = f"script_{next(NUMBERS)}"
        text = dedent(HEAD).lstrip() + dedent(code).lstrip()
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
        module = importlib.import_module(name)
        with pytest.raises(RuntimeError):
            module.run(*args)
        return module.TRACES[-1]

    return run


IN_A_FUNCTION = """
    TRACES = []

    def run(batch):
        side = 8
        model = Net(WIDTH)
        x = torch.randn(batch, 3, side, side)
        try:
            with record() as trace:
                y = model(x)
        finally:
            TRACES.append(trace)
"""


def test_sizes_are_followed_through_the_function_and_the_module(explain):
    found = explain(IN_A_FUNCTION, 2).explanation
    side = N_LINES + 4
    assert found.where == "line 15"
    assert f"line {side + 5}: model(x)" in found.text
    assert "16 = WIDTH, written (line 5)" in found.text
    assert f"8 = side, written (line {side})" in found.text
    assert "400 = fc.in_features, written (line 12)" in found.text
    assert "used as it is, not made again: batch" in found.text


def test_a_repair_around_the_block_is_one_of_the_file(explain):
    trace = explain(IN_A_FUNCTION, 2)
    first = next(one for one in trace.explanation.repairs if "Linear(" in one.after)
    assert (first.line, first.cell) == (12, "")
    assert first.path == trace.rerun.file
    assert first.diff == (
        "@@ -12 +12 @@\n"
        "-        self.fc = nn.Linear(400, 10)\n"
        "+        self.fc = nn.Linear(576, 10)"
    )
    assert first.source.splitlines()[4] == "WIDTH = 16"


BEFORE = {
    "arguments": ["x = torch.randn(*shape)"],
    "changed later": ["x = torch.randn(*shape)", "x = x.repeat(1, 1, 1, 1)"],
    "an argument that is bound again": ["shape = shape", "x = torch.randn(*shape)"],
    "in a context": ["with torch.no_grad():", "    x = torch.randn(*shape)"],
    "in a condition": ["if shape:", "    x = torch.randn(*shape)"],
}


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_what_no_statement_makes_is_used_as_it_is(explain, before):
    indent = "    " * ("    " in before[-1])
    lines = [
        *before,
        f"{indent}try:",
        f"{indent}    with record() as trace:",
        f"{indent}        return Net(WIDTH)(x)",
        f"{indent}finally:",
        f"{indent}    TRACES.append(trace)",
    ]
    code = "TRACES = []\ndef run(shape):\n    " + "\n    ".join(lines)
    found = explain(code, (2, 3, 8, 8)).explanation
    assert "used as it is, not made again: shape" in found.text
    assert "400 = fc.in_features, written (line 12)" in found.text
    assert found.repairs


LOOP = """
    TRACES = []

    def run(images):
        n = 0
        for x in images:
            n += 1
            y = x.repeat(n, 1, 1, 1)
            try:
                with record() as trace:
                    Net(WIDTH)(y)
            finally:
                TRACES.append(trace)
"""


def test_names_that_a_loop_binds_or_changes_are_used_as_they_are(explain):
    images = [torch.randn(2, 3, 8, 8)]
    found = explain(LOOP, images).explanation
    assert "used as it is, not made again: n, x" in found.text
    assert "400 = fc.in_features, written (line 12)" in found.text


def test_a_file_that_was_edited_since_is_taken_as_it_ran(explain, tmp_path):
    trace = explain(IN_A_FUNCTION, 2)
    path = tmp_path / f"{trace.rerun.module}.py"
    path.write_text("# edited\n" + path.read_text().replace("400", "40"))
    assert "400 = fc.in_features, written (line 12)" in trace.explanation.text


def test_why_and_fit_reach_the_function(tmp_path, monkeypatch, explain):
    code = """
    TRACES = []

    def run(batch):
        side = 8
        conv = nn.Conv2d(3, WIDTH, 3)
        x = torch.randn(batch, 3, side, side)
        with record() as trace:
            y = conv(x)
        TRACES.append(trace)
        raise RuntimeError
    """
    trace = explain(code, 2)
    made = trace.ops[-1].outputs[0]
    assert trace.why(made, 1).lines[0] == "16 = WIDTH, written (line 5)"
    found = trace.fit("t4", vary={"side": range(8, 64, 8)}).sizes["side"]
    for side in (8, 16, 56):
        # x, y, and 16 filters of 3 * 3 * 3 with a bias
        numbers = 2 * 3 * side**2 + 2 * 16 * (side - 2) ** 2 + 16 * (27 + 1)
        assert found.peak_nbytes(side) == 4 * numbers
