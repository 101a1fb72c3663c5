"""``%%meta`` in a real shell: what a cell gives, keeps and shows."""

import importlib
import inspect

import pytest
import torch

from meta_magic.magic.extension import PRINTED

ASYNC = "import asyncio\nawait asyncio.sleep(0)\n"
CELLS = {
    "41 + 1": 42,
    "torch.ones(2).is_meta": True,
    "from __future__ import annotations\ndef f(x: no): ...\nf.__annotations__": {
        "x": "no"
    },
    "here = %pwd\nwords = !echo one two\n(here != '', words[0])": (True, "one two"),
    "%%time\ntorch.ones(1).is_meta": True,
    "%%meta\ntorch.ones(1).is_meta": True,
    f"{ASYNC}torch.ones(1).is_meta": True,
    "with torch.device('cpu'):\n    x = torch.ones(1)\nx.item()": 1.0,
    "real.tolist()": [0, 1, 2],
}


@pytest.mark.parametrize("cell", CELLS)
def test_the_last_expression_is_the_value_of_the_cell(shell, cell):
    shell.user_ns["real"] = torch.arange(3)
    assert shell.run_cell(f"%%meta\n{cell}").result == CELLS[cell]


def test_value_and_names_of_the_cell_are_kept(shell):
    shell.run_cell("%%meta\nx = 41 + 1\nx", store_history=True)
    assert shell.user_ns["Out"] == {1: 42}
    assert shell.user_ns["_"] == shell.user_ns["x"] == 42


def test_a_semicolon_silences_the_value(shell, capsys):
    shell.run_cell("%%meta\n41 + 1;")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "mode", ["all", "last", "last_expr", "none", "last_expr_or_assign"]
)
@pytest.mark.parametrize("cell", ["1\n2", "1\nx = 2", "for i in range(2): i"])
def test_a_cell_shows_what_it_would_without_the_magic(shell, capsys, mode, cell):
    shell.ast_node_interactivity = mode
    shell.run_cell(cell)
    plain = capsys.readouterr().out
    shell.run_cell(f"%%meta\n{cell}")
    assert capsys.readouterr().out == plain


def test_the_users_ast_transformers_see_the_body(shell):
    import ast

    class Double(ast.NodeTransformer):
        def visit_Constant(self, node):
            is_number = isinstance(node.value, int)
            return ast.Constant(2 * node.value if is_number else node.value)

    shell.ast_transformers.append(Double())
    assert shell.run_cell("%%meta\n21").result == 42


def test_the_source_of_a_function_of_the_cell_is_found(shell):
    shell.run_cell("%%meta\n\ndef double(x):\n    return 2 * x")
    source = inspect.getsource(shell.user_ns["double"])
    assert source == "def double(x):\n    return 2 * x\n"


def test_the_hooks_of_others_run_once_and_outside_of_the_modes(shell):
    seen = []

    def look(*_):
        seen.append(torch.get_default_device().type)

    events = ("pre_execute", "pre_run_cell", "post_execute", "post_run_cell")
    for event in events:
        shell.events.register(event, look)
    shell.run_cell("%%meta\ntorch.ones(2)")
    assert seen == ["cpu"] * len(events)


def test_the_value_is_shown_outside_of_the_modes(shell, capsys):
    shell.run_cell(
        "class Shown:\n    def __repr__(self): return torch.ones(1).device.type"
    )
    shell.run_cell("%%meta\nShown()")
    assert capsys.readouterr().out.split() == ["Out[0]:", "cpu"]


# Magics and shell commands around and within.


def test_capture_above_takes_text_and_report(shell):
    shell.run_cell("%%capture taken\n%%meta\nprint(torch.ones(1).device)")
    taken = shell.user_ns["taken"]
    assert taken.stdout.split() == ["meta"]
    assert "text/html" in taken.outputs[0].data


def test_meta_within_meta_is_recorded_by_both_with_the_lines_of_the_notebook(shell):
    shell.run_cell("%%meta -o outer\n%%meta -o inner\ntorch.ones(1)")
    for name in ("outer", "inner"):
        (call,) = shell.user_ns[name].ops
        assert (call.op, call.line) == ("aten.ones.default", 3)


def test_code_can_run_the_magic_and_take_its_value(shell):
    assert shell.run_cell_magic("meta", "-q", "3 * 4") == 12


CONTEXTS = {
    "torch.no_grad()": "torch.is_grad_enabled()",
    "torch.device('cpu')": "torch.ones(1).device.type",
    "torch.inference_mode()": "torch.ones(1).is_inference()",
    "torch.autocast('cpu')": "torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype",
}


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_context_that_is_opened_before_an_await_holds_after_it(shell, context):
    answer = CONTEXTS[context]
    cell = "%%meta -q\nimport asyncio\nwith {}:\n    {}\n    inside = {}\ninside, {}"
    kept, known = (
        shell.run_cell(cell.format(context, waiting, answer, answer)).result
        for waiting in ("await asyncio.sleep(0)", "pass")
    )
    assert kept == known
    assert kept[0] != kept[1]


def test_what_is_set_before_an_await_holds_after_it_and_both_sides_are_recorded(shell):
    try:
        cell = f"torch.set_default_dtype(torch.float64)\ntorch.ones(1)\n{ASYNC}"
        assert (
            shell.run_cell(f"%%meta -q\n{cell}torch.ones(1).dtype").result
            == torch.float64
        )
        assert [op.line for op in shell.user_ns["_meta"].ops] == [3, 6]
    finally:
        torch.set_default_dtype(torch.float32)


TASKS = """
import asyncio
kept = []
async def work(n):
    kept.append(torch.ones(n))
    await asyncio.sleep(0)
    nested = asyncio.create_task(sleep_and_add(n))
    return (await nested).sum().item()
async def sleep_and_add(n):
    await asyncio.sleep(0)
    return kept[n - 2] + n
async def fail():
    await asyncio.sleep(0)
    return torch.ones(2) @ torch.ones(3)
async def late():
    await gate.wait()
    kept.append(torch.ones(1))
gate = asyncio.Event()
left = asyncio.ensure_future(late())
found = await asyncio.gather(work(2), work(3), fail(), return_exceptions=True)
(found[:2], type(found[2]).__name__, [x.device.type for x in kept], len(kept))
"""


def test_tasks_that_a_cell_starts_are_recorded_as_its_own_code(shell):
    told = shell.run_cell(f"%%meta\n{TASKS}").result
    assert told == ([6.0, 12.0], "RuntimeError", ["meta", "meta"], 2)
    assert [op.op for op in shell.user_ns["_meta"].ops].count("aten.ones.default") == 4
    factory = "asyncio.get_running_loop().get_task_factory()"
    assert shell.run_cell(f"gate.set()\nawait left\n{factory}").result is None
    assert shell.user_ns["kept"][-1].device.type == "cpu"  # the cell had ended


@pytest.mark.parametrize(("module", "name"), PRINTED)
def test_an_answer_is_shown_as_it_is_printed(shell, capsys, module, name):
    kind = getattr(importlib.import_module(module), name)
    told = kind.__new__(kind)
    shell.user_ns["told"] = told
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "__str__", lambda _: "told in words")
        patch.setattr("meta_magic.magic.extension.render_report", lambda _: "")
        shell.run_cell("told")
    assert capsys.readouterr().out.endswith("told in words\n")


def test_an_empty_cell_is_refused_in_one_line(shell, capsys):
    shell.run_cell("%%meta\n")
    error = capsys.readouterr().err
    assert error.startswith("UsageError: %%meta is a cell magic, but the cell body is")
    assert error.count("\n") == 1


def test_a_cell_of_comments_has_an_empty_trace(shell):
    assert shell.run_cell("%%meta\n# nothing").success
    assert len(shell.user_ns["_meta"].ops) == 0


# The trace.


def test_the_newest_trace_with_its_source_is_kept_as_meta(shell):
    for function in ("ones", "zeros"):
        shell.run_cell(f"%%meta\ntorch.{function}(2)\n")
        trace = shell.user_ns["_meta"]
        assert [op.op for op in trace.ops] == [f"aten.{function}.default"]
        assert trace.source.strip() == f"torch.{function}(2)"


@pytest.mark.parametrize("option", ["-o kept", "--out kept", "--out=kept", "-okept"])
def test_out_keeps_the_trace_under_a_name(shell, option):
    shell.run_cell(f"%%meta {option}\ntorch.ones(2)")
    assert shell.user_ns["kept"] is shell.user_ns["_meta"]


def test_a_failing_cell_keeps_what_it_did_before(shell):
    shell.run_cell("%%meta -o kept\ntorch.ones(2)\n1 / 0\ntorch.zeros(2)")
    kept = shell.user_ns["kept"]
    assert [op.op for op in kept.ops] == ["aten.ones.default"]
    assert kept.error == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ("%%meta\ntorch.ones(2)\n1 / 0", 3),
        ("\n%%meta\ndef fail():\n    return 1 / 0\n\nfail()", 4),
        ("%%meta\ntorch.ones(2) @ torch.ones(3)", 2),
        ("%%meta\n1 / 1", None),
        ("%%meta\nnn.Linear('a', 2)", 2),
    ],
)
def test_a_failed_cell_knows_its_line(shell, cell, line):
    shell.run_cell(cell)
    assert shell.user_ns["_meta"].error_line == line


def test_load_inside_of_the_cell_gives_meta_tensors(shell, tmp_path):
    torch.save({"weight": torch.ones(2)}, tmp_path / "weights.pt")
    shell.user_ns["path"] = tmp_path / "weights.pt"
    assert shell.run_cell("%%meta\ntorch.load(path)").result["weight"].is_meta
