"""What a slider shows is what a fresh recording with that number has."""

import gzip
import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn

from meta_magic import record
from meta_magic.children import Child
from meta_magic.trace.options import read_sliders
from meta_magic.trials.trial import run_template
from meta_magic.view import sliders
from meta_magic.view.payload import build_payload
from meta_magic.view.sliders import AT_ONCE, Designs, offer_sliders, write_numbers
from meta_magic.view.widgets import show_report

PARTS = ("geometries", "storages", "memory", "modules", "work", "calls", "owners")
"""Of the payload: what does not depend on lines of the code and on seconds."""


def attend(*, batch, length, width, heads, layers):
    layer = nn.TransformerEncoderLayer(width, heads, 2 * width, batch_first=True)
    return nn.TransformerEncoder(layer, layers)(torch.ones(batch, length, width))


def step(*, batch, inputs, width, classes):
    model = nn.Sequential(nn.Linear(inputs, width), nn.ReLU())
    model.append(nn.Linear(width, classes))
    optimizer = torch.optim.AdamW(model.parameters())
    wanted = torch.arange(batch) % classes
    nn.functional.cross_entropy(model(torch.ones(batch, inputs)), wanted).backward()
    optimizer.step()
    return model, optimizer


def convolve(*, batch, channels, width, kernel, side):
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel),
        nn.BatchNorm2d(width),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )(torch.ones(batch, channels, side, side))


def recur(*, length, batch, inputs, width, layers):
    lstm = nn.LSTM(inputs, width, layers, bidirectional=True)
    return lstm(torch.ones(length, batch, inputs))


def embed(*, batch, length, vocabulary, width):
    numbers = torch.arange(batch * length).view(batch, length) % vocabulary
    x = nn.Embedding(vocabulary, width)(numbers)
    return nn.functional.scaled_dot_product_attention(x, x, x)


def mask(*, length, width):
    x = torch.ones(length, width)
    return x[torch.arange(length) % 2 == 0].sum()


def branch(*, batch, width):
    layers = [nn.Linear(width, width) for _ in range(2 if width > 20 else 1)]
    return nn.Sequential(*layers)(torch.ones(batch, width))


def upsample(*, batch, width, side):
    up = nn.ConvTranspose2d(width, width // 2, 2, 2)
    x = up(torch.ones(batch, width, side, side))
    return torch.cat([x, x], 1).permute(0, 2, 3, 1).reshape(-1, width)


MODELS = {
    attend: {"batch": 2, "length": 5, "width": 16, "heads": 4, "layers": 2},
    step: {"batch": 4, "inputs": 8, "width": 16, "classes": 3},
    convolve: {"batch": 2, "channels": 3, "width": 16, "kernel": 3, "side": 16},
    recur: {"length": 5, "batch": 2, "inputs": 8, "width": 16, "layers": 2},
    embed: {"batch": 3, "length": 4, "vocabulary": 50, "width": 16},
    mask: {"length": 16, "width": 3},
    branch: {"batch": 1, "width": 16},
    upsample: {"batch": 1, "width": 16, "side": 4},
}


@pytest.mark.parametrize("model", MODELS)
def test_each_slider_shows_what_a_fresh_cell_has(shell, model):
    own, designs, n_equal = MODELS[model], Designs(), 0
    shell.user_ns["model"] = model
    options = " ".join(f"-p {name}=1..99" for name in own)

    def run(sizes):
        lines = [f"{name} = {size}" for name, size in sizes.items()]
        call = f"kept = model({', '.join(f'{name}={name}' for name in sizes)})"
        return shell.run_cell("\n".join([f"%%meta -q {options}", *lines, call]))

    run(own).raise_error()
    trace = shell.user_ns["_meta"]
    moves = [{name: n} for name, size in own.items() for n in (size + 1, 2 * size)]
    for move in moves:
        answer = designs.answer(trace, {"sizes": own | move, "pinned": own})
        if run(own | move).success:
            assert "error" not in answer, (move, answer["error"])
            shown = json.loads(gzip.decompress(answer["buffers"][0]))
            expected = json.loads(json.dumps(build_payload(shell.user_ns["_meta"])))
            for part in PARTS:
                assert shown[part] == expected[part], (move, part)
            assert shown["ops"]["signature"] == expected["ops"]["signature"]
            n_equal += 1
        else:
            assert answer["error"], move
    assert n_equal >= len(moves) - 2


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("d=2..4", (2, 3, 4)),
        ("d=256..1024:256", (256, 512, 768, 1024)),
        ("d=[64,32,64]", (32, 64)),
    ],
)
def test_values_are_written_as_a_range_or_a_list(text, values):
    assert read_sliders([text]) == (("d", values),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("d", "-p d: write NAME=FIRST..LAST"),
        ("d=3..x", "-p d=3..x: write"),
        ("d=1..5:0", "-p d=1..5:0: write"),
        ("d=0..4", "a slider has positive integers"),
        ("d=[1.5]", "d=.1.5.: a slider has positive integers"),
        ("d=9..3", "d has no values: .*, with FIRST up to LAST"),
        ("2d=1..3", "'2d' is no name"),
        ("d=1..1000000", "write a step, as in d=1..1000000:100"),
    ],
)
def test_other_values_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        read_sliders([text])


def test_a_cell_that_writes_a_file_is_declined(tmp_path):
    with record(params={"n": [1, 2]}) as trace:
        n = 1
        (tmp_path / "out").write_text("x" * n)
    answer = Designs().answer(trace, {"sizes": {"n": 2}, "pinned": {"n": 1}})
    path = str(tmp_path / "out")
    line = '`(tmp_path / "out").write_text("x" * n)`'
    error = f"it writes the file {path!r}: move {line} out of the block"
    assert answer["error"] == error
    assert "is_rule" not in answer


def test_what_a_cell_prints_is_that_of_the_numbers():
    with record(params={"n": [1, 2]}) as trace:
        n = 1
        print(torch.ones(n).sum().item())
    answer = Designs().answer(trace, {"sizes": {"n": 2}, "pinned": {"n": 1}})
    assert answer["printed"] == "2.0\n"


@pytest.mark.parametrize(
    "plot",
    [
        "plt.plot([1, n])",
        "display({'image/png': ''}, raw=True)",
        "go.Figure()",  # as the last value
    ],
)
def test_a_cell_that_plots_is_declined(shell, plot):
    pytest.importorskip("matplotlib")
    shell.run_cell(
        "import torch, matplotlib, matplotlib.pyplot as plt\n"
        "import plotly.graph_objects as go\n"
        "from IPython.display import display\n"
        "matplotlib.use('agg')"
    )
    shell.run_cell(f"%%meta -q -p n=1..3\nn = 2\nx = torch.ones(n)\n{plot}")
    assert ask_three(shell)["error"] == sliders.PLOTS


def test_a_bar_of_progress_is_no_plot(shell):
    pytest.importorskip("tqdm.notebook")
    shell.run_cell("import torch\nfrom tqdm.notebook import tqdm")
    shell.run_cell(
        "%%meta -q -p n=1..3\nn = 2\nx = [torch.ones(n) for _ in tqdm('ab')]"
    )
    assert "error" not in ask_three(shell)


def ask_three(shell):
    asked = {"sizes": {"n": 3}, "pinned": {"n": 2}}
    return Designs().answer(shell.user_ns["_meta"], asked)


def test_a_name_with_several_values_moves_by_one_of_them():
    with record(params=["width=[8]", "width=16=[8]"]) as trace:
        width = 16
        x = torch.ones(width)
        width = 32
        kept = torch.cat([x, torch.ones(width)])
    both, first = offer_sliders(trace)
    assert re.search(r"16 in line \d+, 32 in line \d+.*as in width=16", both["error"])
    assert (first["value"], first["error"]) == (16, "")
    found = Designs().record(trace, {"width=16": 8})
    kept = json.loads(gzip.decompress(found[0]))
    assert [40] in [one["shape"] for one in kept["geometries"]]


def test_numbers_are_written_into_a_cell(shell):
    shell.run_cell(
        "%%meta -q -p width=1..9 -p depth=1..9\n"
        "import torch\n"
        "width, depth = 3, 2  # both\n"
        "x = torch.ones(width, depth)"
    )
    trace = shell.user_ns["_meta"]
    assert [one["value"] for one in offer_sliders(trace)] == [3, 2]
    written = write_numbers(trace, {"width": 8, "depth": 7})
    assert written.splitlines()[2] == "width, depth = 8, 7  # both"


@pytest.mark.parametrize(("seconds", "moves"), [(0.0, False), (100.0, True)])
def test_a_move_may_take_longer_if_the_cell_took_long(monkeypatch, seconds, moves):
    monkeypatch.setattr(sliders, "SECONDS", 0.4)
    with record(params={"rounds": [3, 2 * 10**5]}) as trace:
        rounds = 3
        for _ in range(rounds):
            sum(range(10**3))
    asked = {"sizes": {"rounds": 2 * 10**5}, "pinned": {"rounds": 3}}  # 1 s or more
    answer = Designs().answer(replace(trace, seconds=seconds), asked)
    assert ("error" not in answer) == moves


def test_a_slider_moves_a_cell_of_a_world():
    with record(world=64, params={"width": [8, 16]}) as trace:
        dist.init_process_group("nccl")
        width = 8
        dist.all_reduce(torch.ones(width, width))
    asked = {"sizes": {"width": 16}, "pinned": {"width": 8}}
    (packed,) = Designs().answer(trace, asked)["buffers"]
    sent = json.loads(gzip.decompress(packed))["world"]["sent"]
    assert sent["nbytes"] == [16 * 16 * 4]


def test_an_assertion_without_a_text_shows_its_line():
    with record(params={"heads": [2, 3]}) as trace:
        heads = 2
        assert 8 % heads == 0  # the test's own
        torch.ones(8)
    answer = Designs().answer(trace, {"sizes": {"heads": 3}, "pinned": {"heads": 2}})
    assert "AssertionError: assert 8 % heads == 0" in answer["error"]


TEXT = """%%meta -q
import torch
from torch import nn
é = nn.Linear(4, 8); model = nn.Linear(in_features=8, out_features=2)
x = [3, 3]
y = model(é(torch.ones(*x[:1], 4)))"""


def offer_at(trace, line, column):
    return Designs().answer(trace, {"line": line, "column": column})


def test_a_number_is_found_by_its_position(shell):
    shell.run_cell(TEXT)
    trace = shell.user_ns["_meta"]
    line = TEXT.split("\n")[3].encode()
    offer = offer_at(trace, 4, line.index(b"8)"))
    assert offer["name"].partition("=")[0] == "Linear[1] (line 4)"
    assert (offer["value"], offer["values"]) == (8, [*range(1, 17)])
    other = offer_at(trace, 4, line.index(b"2)"))
    assert other["name"].partition("=")[0] == "out_features (line 4)"
    assert offer_at(trace, 5, 8)["name"].partition("=")[0] == "line 5"
    assert "no name" in offer_at(trace, 5, 7)["error"]
    pinned = {other["name"]: 2}
    asked = {"sizes": {other["name"]: 5}, "pinned": pinned}
    answer = Designs().answer(trace, asked)
    assert answer["text"].startswith("out_features (line 4) 2 -> 5; +27 parameters")
    shown = json.loads(gzip.decompress(answer["buffers"][0]))
    assert (shown["source"], shown["cell"]) == (
        trace.source,
        {"file": "In[1]", "first": 2},
    )
    assert write_numbers(trace, {other["name"]: 5, offer["name"]: 9}) == TEXT.replace(
        "4, 8", "4, 9"
    ).replace("=2)", "=5)")


def test_lines_are_those_of_the_cells_though_they_run_as_one_text(shell):
    shell.run_cell("import torch\nwidth = 4\n\ndef double(x):\n    return x * 2\n")
    shell.run_cell(
        "%%meta -q -p width=[4,8]\n\nx = double(torch.ones(width, 3))\ny = x.sum()"
    )
    trace = shell.user_ns["_meta"]
    name = Designs().answer(trace, {"line": 3, "column": 29})["name"]
    asked = {"sizes": {"width": 8, name: 5}, "pinned": {"width": 4, name: 3}}
    answer = Designs().answer(trace, asked)
    assert answer["text"].startswith("width 4 -> 8; ones[1] (line 3) 3 -> 5")
    shown = json.loads(gzip.decompress(answer["buffers"][0]))
    own = json.loads(json.dumps(build_payload(trace)))
    for part in ("positions", "places", "texts", "source", "cell", "tokens"):
        assert shown[part] == own[part], part
    assert [8, 5] in [one["shape"] for one in shown["geometries"]]


# The template


@pytest.fixture
def list_new():
    """Return a function that lists the processes that a test has started."""
    here = psutil.Process()
    before = {*here.children(recursive=True)}
    return lambda: [
        one
        for one in here.children(recursive=True)
        if one not in before and one.status() != psutil.STATUS_ZOMBIE
    ]


def read_parts(answer):
    shown = json.loads(gzip.decompress(answer["buffers"][0]))
    return [shown[part] for part in PARTS]


def test_a_number_recorded_ahead_shows_the_same():
    with record(params={"width": range(8, 64, 8)}) as trace:
        width = 16
        kept = attend(batch=2, length=5, width=width, heads=4, layers=2)
    designs = Designs()
    for value in range(24, 64, 8):
        asked = {"sizes": {"width": value}, "pinned": {"width": 16}}
        ahead = [{"width": value + 8}, {"width": value + 16}]
        answer = designs.answer(trace, {**asked, "with": ahead})
        assert read_parts(answer) == read_parts(Designs().answer(trace, asked))
    del kept


def test_what_is_not_asked_for_next_is_ended(list_new):
    with record(params={"n": range(1, 100)}) as trace:
        n = 1
        while n > 90:
            torch.ones(n)
        torch.ones(n)
    designs, pinned = Designs(), {"n": 1}
    ahead = [{"n": 95}, {"n": 96}]  # they have no end
    for value in (2, 3):
        asked = {"sizes": {"n": value}, "pinned": pinned, "with": ahead}
        assert "error" not in designs.answer(trace, asked)
    assert len(list_new()) == AT_ONCE  # the template, and one on a second processor
    designs.answer(trace, {"sizes": {"n": 4}, "pinned": pinned})
    assert len(list_new()) == 1


def test_what_was_recorded_ahead_is_returned_with_the_next_answer(list_new):
    with record(params={"n": range(1, 9)}) as trace:
        n = 1
        torch.ones(n)
    ask = partial(run_template, trace, lambda *_: None, 60.0, 2)
    with Child(ask, 600.0) as template:
        template.read(60.0)
        template.send([{"n": 2}, {"n": 5}])
        keys = {one for ((_, one),) in template.read(60.0)}
        while len(list_new()) > 1:  # the template, and what records ahead
            time.sleep(0.01)
        template.send([{"n": 3}])
        keys |= {one for ((_, one),) in template.read(60.0)}
    assert keys == {2, 3, 5}


def test_numbers_are_recorded_ahead_before_the_first_move(list_new):
    with record(params={"n": range(1, 9)}) as trace:
        n = 1
        torch.ones(n)
    designs = Designs()
    assert designs.answer(trace, {"with": [{"n": 2}]}) == {}
    assert list_new() != []
    assert "buffers" in designs.answer(trace, {"sizes": {"n": 2}, "pinned": {"n": 1}})


@pytest.mark.parametrize("end", ["drop", "close"])
def test_no_process_is_left_of_sliders(list_new, end):
    with record(params={"n": range(1, 100)}) as trace:
        n = 1
        while n > 90:
            time.sleep(1)
        torch.ones(n), torch.ones(n), torch.ones(n)
    designs = Designs()
    asked = {"sizes": {"n": 2}, "pinned": {"n": 1}, "with": [{"n": 95}]}
    assert "error" not in designs.answer(trace, asked)
    assert len(list_new()) == AT_ONCE
    report = show_report(trace, designs=designs) if end == "close" else None
    del designs
    if report is not None:
        assert len(list_new()) == AT_ONCE
        report.close()
    psutil.wait_procs(list_new(), timeout=30)
    assert list_new() == []


ENDED = """
import os, signal
import torch
from meta_magic import record
from meta_magic.trials import trial
from meta_magic.view.sliders import Designs
import psutil

trial.IDLE = 2
with record(params={"n": range(1, 100)}) as trace:
    n = 1
    while n > 90:
        __import__("time").sleep(1)
    torch.ones(n)
designs = Designs()
asked = {"sizes": {"n": 2}, "pinned": {"n": 1}, "with": [{"n": 95}]}
assert "error" not in designs.answer(trace, asked)
started = psutil.Process().children(recursive=True)
print(*(one.pid for one in started), flush=True)
"""


@pytest.mark.parametrize(
    "last",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",
        "psutil.wait_procs(started, timeout=30); os._exit(0)",
    ],
    ids=["killed", "idle"],
)
def test_the_template_ends_with_its_process_and_when_it_is_idle(
    tmp_path, last, forked_pythons
):
    path = tmp_path / "moves.py"
    path.write_text(ENDED + last, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, path], stdout=subprocess.PIPE, text=True, check=False
    )
    started = [int(word) for word in ran.stdout.split()]
    assert len(started) == AT_ONCE
    deadline = time.monotonic() + 30
    while any(map(psutil.pid_exists, started)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, started))


def test_a_template_that_has_ended_is_forked_anew(list_new):
    with record(params={"n": range(1, 100)}) as trace:
        n = 1
        torch.ones(n)
    designs, pinned = Designs(), {"n": 1}
    designs.answer(trace, {"sizes": {"n": 2}, "pinned": pinned})
    for one in list_new():
        one.kill()
    answer = designs.answer(trace, {"sizes": {"n": 3}, "pinned": pinned})
    assert answer["text"].startswith("n 1 -> 3")


def test_a_move_sees_what_a_cell_has_changed_since(shell, list_new):
    shell.run_cell("import torch\nkept = torch.nn.ModuleList()", store_history=True)
    shell.run_cell(
        "%%meta -q -p width=1..9\nwidth = 4\n"
        "for _ in range(len(kept) + 1): torch.ones(width)",
        store_history=True,
    )
    trace, designs = shell.user_ns["_meta"], Designs()

    def count_calls(width):
        asked = {"sizes": {"width": width}, "pinned": {"width": 4}}
        shown = json.loads(gzip.decompress(designs.answer(trace, asked)["buffers"][0]))
        return len(shown["ops"]["signature"])

    assert count_calls(5) == 1
    first = list_new()
    assert (count_calls(6), list_new()) == (1, first)
    shell.run_cell("kept.append(torch.nn.ReLU())", store_history=True)
    assert count_calls(7) == 2
    assert list_new() != first


def test_each_move_begins_with_the_state_before_the_first():
    kept = nn.ModuleList()
    with record(params={"n": range(1, 9)}) as trace:
        n = 1
        kept.append(nn.ReLU())
        torch.ones(n, len(kept))
    designs = Designs()
    shapes = []
    for n in (2, 3, 4):
        asked = {"sizes": {"n": n}, "pinned": {"n": 1}, "with": [{"n": n + 1}]}
        shown = json.loads(gzip.decompress(designs.answer(trace, asked)["buffers"][0]))
        shapes.append(shown["geometries"][-1]["shape"])
    assert shapes == [[2, 2], [3, 2], [4, 2]]
