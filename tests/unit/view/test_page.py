"""The report as a file, and its packed parts."""

import gzip
import inspect
import json
import re
import shutil
import subprocess

import pytest
import torch
import torch.distributed as dist
from torch import nn

from meta_magic import record
from meta_magic.ranks.recorded_ranks import Ranks
from meta_magic.view.html import build_bundle, render_html, render_ranks
from meta_magic.view.page import write_packed
from meta_magic.view.payload import build_payload
from meta_magic.view.scripts import join_scripts
from tests.base91 import read_base91


@pytest.fixture
def trace():
    with record() as trace:
        model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    assert model[0].weight.is_meta
    return trace


def test_a_file_holds_the_payload_the_script_and_the_tree(trace, tmp_path):
    trace.to_html(tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text("utf-8")
    text, n_bytes = re.findall(r"\['(.+?)', (\d+)\]", html)[-1]
    payload = json.loads(gzip.decompress(read_base91(text, int(n_bytes))))
    assert payload == json.loads(json.dumps(build_payload(trace)))
    assert html.count("<script") == 1
    assert "model: Linear, ReLU" in html.split("<script")[0]


def test_a_file_asks_for_nothing_from_elsewhere(trace, tmp_path):
    trace.to_html(tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text("utf-8")
    assert not re.search(r"src=|href=|@import|url\(", html)


def test_a_front_end_without_ipython_is_given_the_saved_report(trace):
    assert inspect.getattr_static(trace, "_repr_html_")
    html = trace._repr_html_()
    assert "report.start(" in html
    assert "model: Linear, ReLU" in html


def test_the_html_of_a_bundle_is_that_given_or_the_tree(trace):
    assert build_bundle(trace) == {
        "text/plain": trace.summary(),
        "text/html": render_html(trace),
    }
    assert build_bundle(trace, "<p>")["text/html"] == "<p>"


def test_outside_of_ipython_show_prints_the_summary(trace, capsys):
    trace.show()
    assert capsys.readouterr().out.strip() == trace.summary()


def test_a_trace_has_the_cell_that_it_recorded(shell):
    shell.run_cell("\n%%meta\n\nx = torch.ones(2)\n")
    trace = shell.user_ns["_meta"]
    assert "x = torch.ones(2)" in trace.source
    lines = trace.source.splitlines()
    assert trace.ops[0].line == trace.cell.first_line + lines.index("x = torch.ones(2)")
    assert trace.ops[0].position.file == trace.cell.file


def test_cells_that_ran_are_sent_whole_and_in_order(shell):
    cells = (
        "class A:\n    def f(self):\n        return torch.ones(2)",
        "def g(a):\n    return a.f() + 1",
    )
    for cell in (*cells, "%%meta\ng(A())"):
        shell.run_cell(cell, store_history=True)
    payload = build_payload(shell.user_ns["_meta"])
    own = shell.execution_count - 1
    assert payload["cell"] == {"file": f"In[{own}]", "first": 2}
    assert [(text["heading"], text["first"]) for text in payload["texts"]] == [
        (f"In[{own - 2}]", 1),
        (f"In[{own - 1}]", 1),
    ]
    assert tuple(text["text"] for text in payload["texts"]) == cells
    assert "<ipython-input" not in json.dumps(payload)


NODE = shutil.which("node")
ALL_BYTES = bytes(range(256)) * 3
"""Each value at each of the places that its bits can have in a pair."""


@pytest.mark.skipif(NODE is None, reason="no Node.js on this machine")
@pytest.mark.parametrize("n_bytes", [0, 1, 12, 13, 14, 768])
def test_a_browser_reads_them(n_bytes):
    data = ALL_BYTES[len(ALL_BYTES) - n_bytes :]
    packed = f"report.read_base91({write_packed(data)})"
    script = f"{join_scripts('starter')}\nconsole.log(JSON.stringify([...{packed}]))"
    done = subprocess.run([NODE, "-e", script], capture_output=True, check=True)
    assert bytes(json.loads(done.stdout)) == data


# ``Ranks.show()``: a strip for each recorded process, and what hangs in words


def record_rank(rank):
    with record(world=16, rank=rank, per_node=8) as trace:
        dist.init_process_group("gloo")
        node = [dist.new_group([*range(n, n + 8)]) for n in (0, 8)][rank // 8]
        dist.all_reduce(torch.ones(256))
        if rank == 0:
            dist.all_reduce(torch.ones(2))
        dist.broadcast(torch.ones(4), 0, group=node)
        dist.broadcast(torch.ones(4), 0)
    return trace


def test_each_process_has_a_strip_and_each_collective_a_tick():
    html = render_ranks(Ranks({rank: record_rank(rank) for rank in (0, 1)}))
    assert html.count("<svg") == html.count("<polygon") == 2
    assert html.count("<path") == 4 + 3
    heights = re.findall(r"class='mm-sent-(\w+)' d='M[\d.]+ \d+v(\d+)'", html)
    # The group of a node stays on its machine: its tick is short.
    assert heights[-3:] == [
        ("all_reduce", "16"),
        ("broadcast", "8"),
        ("broadcast", "16"),
    ]
    assert "all_reduce · 1.0 KiB float32 · sum · ranks 0-15 · other · line" in html


def test_what_hangs_stands_below_in_words():
    ranks = Ranks({rank: record_rank(rank) for rank in (0, 1)})
    (mismatch,) = ranks.mismatches
    assert f"<li>{mismatch}</li>" in render_ranks(ranks)
    assert "this hangs" in str(mismatch)


def test_the_strips_have_one_scale():
    with record(world=2) as large:
        kept = torch.ones(1024)
    with record(world=2, rank=1) as small:
        half = torch.ones(512)
    assert kept.is_meta
    assert half.is_meta
    html = render_ranks(Ranks({0: large, 1: small}))
    areas = re.findall(r"points='([^']*)'", html)
    tops = [min(float(p.split(",")[1]) for p in area.split()) for area in areas]
    assert tops == [2, 29]  # of 56 pixels, less two: half of it


def test_an_error_stands_in_its_strip():
    try:
        with record(world=2) as failed:
            torch.ones(2, 3) @ torch.ones(2, 3)
    except RuntimeError:
        pass
    assert failed.error
    html = render_ranks(Ranks({0: failed}))
    assert failed.error.split("<")[0][:20] in html
