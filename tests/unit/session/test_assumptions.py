"""Sizes that depend on values beyond the limits, and what is assumed of them."""

import io
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from meta_magic import (
    MaterializeError,
    MissingValueError,
    ValueLimits,
    materialize,
    record,
)
from meta_magic.check.block_run import pick_seconds
from meta_magic.check.records import Request, read_subject
from meta_magic.errors import ValueLimitError
from meta_magic.replaying import value_budget
from meta_magic.session.assumptions import advise_more
from meta_magic.trace import progress
from meta_magic.trace.options import Options
from meta_magic.view.payload import build_payload
from tests.unit.eager import assert_same

NOTHING = ValueLimits(nbytes=0, flops=0)


def record_with(*assume):
    return record(limits=NOTHING, assume=assume)


def test_all_are_true():
    with record_with("nonzero=all"):
        mask = torch.rand(3, 4) > 0.5
        assert mask.nonzero().shape == (12, 2)
        assert torch.rand(3, 4, 5)[mask].shape == (12, 5)
        assert torch.rand(3, 4).masked_select(mask).shape == (12,)
        assert torch.rand(5, 3, 4).masked_select(mask).shape == (60,)
        assert [len(t) for t in torch.where(mask)] == [12, 12]


@pytest.mark.parametrize(
    ("part", "n_true"), [("0.5", 6), ("0", 0), ("0.3", 4), ("1", 12)]
)
def test_a_part_is_true(part, n_true):
    # 0.3 x 12 = 3.6, which is nearest to 4.
    with record_with(f"nonzero={part}"):
        assert (torch.rand(3, 4) > 0.5).nonzero().shape == (n_true, 2)


def route(tokens, n_experts, k):
    """Return for each expert how many tokens a loop over experts gives it."""
    logits = torch.rand(tokens, n_experts)
    chosen = logits.topk(k, dim=-1).indices
    return [len(torch.where(chosen == e)[0]) for e in range(n_experts)]


def test_each_expert_gets_as_many_tokens():
    with record_with("routing=uniform"):
        assert route(64, 8, 2) == [64 * 2 // 8] * 8


def test_routing_through_one_hot_and_a_permutation():
    # The router's 64 x 8 numbers take 2,048 bytes, the list of experts 8 x 8.
    with record(limits=ValueLimits(nbytes=1000), assume="routing=uniform"):
        chosen = torch.rand(64, 8).topk(2, dim=-1).indices
        mask = torch.nn.functional.one_hot(chosen, 8).permute(2, 1, 0)  # (8, 2, 64)
        hit = (mask.sum((-1, -2)) > 0).nonzero()
        assert hit.shape == (8, 1)
        assert [int(i) for i in hit[:, 0]] == [*range(8)]
        assert len(torch.where(mask[hit[3, 0]])[0]) == 64 * 2 // 8


def test_what_can_be_known_is_not_assumed():
    with record(assume="nonzero=all") as trace:
        assert torch.tensor([True, False]).nonzero().shape == (1, 1)
    assert not trace.program.assumptions


def test_the_operator_and_all_that_follows_are_marked():
    with record_with("nonzero=0.5") as trace:
        x = torch.rand(4)
        positions = (x > 0.5).nonzero()
        y = x[positions] * 2
        x.add_(1)
        y.sum()
    marked = {op.op: op.assumed for op in trace.ops}
    assert marked == {
        "aten.rand.default": None,
        "aten.gt.Scalar": None,
        "aten.nonzero.default": "nonzero=0.5",
        "aten.index.Tensor": "nonzero=0.5",
        "aten.mul.Tensor": "nonzero=0.5",
        "aten.add_.Tensor": None,
        "aten.sum.default": "nonzero=0.5",
    }
    (note,) = trace.notes
    assert note.kind == "assumed"
    assert "Tensor.nonzero gives was assumed: nonzero=0.5, so 2 of 4" in note.text
    assert build_payload(trace)["remarks"]["assumed"] == [
        (2, 5, "nonzero=0.5"),
        (6, 7, "nonzero=0.5"),
    ]


def test_values_that_rest_on_an_assumption_are_spread_evenly():
    with record(limits=ValueLimits(nbytes=200), assume="nonzero=0.5") as trace:
        mask = torch.rand(1000)[:8] > 0.5  # 4,000 bytes: too much to know
        positions = mask.nonzero()
        assert positions[:, 0].tolist() == [1, 3, 5, 7]
        assert torch.arange(8)[mask].tolist() == [1, 3, 5, 7]
    assert len(trace.program.assumptions) == 2


@pytest.mark.parametrize(
    "text", ["nonzero=2", "nonzero=-0.1", "nonzero=some", "routing=random", "", "all"]
)
def test_an_assumption_that_is_not_known_is_refused_with_the_list(text):
    with pytest.raises(ValueError, match=r"nonzero=all, nonzero=FRACTION.*routing"):
        record(assume=text)


def test_what_rests_on_an_assumption_is_not_made_real():
    with record(limits=ValueLimits(nbytes=4000), assume="nonzero=all"):
        x = torch.arange(2000.0)
        module = torch.nn.Module()
        module.weight = torch.nn.Parameter(x[x < 0])
        assert "tensor(..." in repr(module.weight)
    with pytest.raises(MaterializeError, match=r"assumed \(nonzero=all\)"):
        materialize(module)
    assert module.weight.is_meta


@pytest.mark.parametrize("text", ["values=nan", "values=2"])
def test_a_value_beyond_the_limits_is_the_number(text):
    wanted = float(text.removeprefix("values="))
    with record_with(text):
        x = torch.rand(3, 4)
        met = [x.sum().item(), float(x[0, 0]), *x[0].tolist(), *x.numpy()[1]]
        assert f"{x.mean():.1f}" == f"{wanted:.1f}"
        assert bool(x.max())
    assert met == pytest.approx([wanted] * 10, nan_ok=True)


def test_a_module_that_an_assumed_number_went_into_is_not_materialized():
    with record_with("values=nan"), torch.no_grad():
        module, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        module.weight.mul_(module.weight.sum().item())
    with pytest.raises(MaterializeError, match=r"which was assumed \(values=nan\)"):
        materialize(module)
    materialize(other)


OPTIONS = {
    "values=nan": lambda: torch.rand(3).sum().item(),
    "values=0": lambda: bool(torch.rand(3).sum() > 0),
    "nonzero=all": lambda: torch.rand(3).gt(0).nonzero(),
    "routing=uniform": lambda: route(64, 8, 2),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_the_error_names_the_option_that_helps(option):
    names_it = f"go on without it \\(--assume {option} or record"
    with pytest.raises(MissingValueError, match=names_it), record_with():
        OPTIONS[option]()
    with record_with(option):
        OPTIONS[option]()


# What a value may take where nobody says more


def test_a_large_draw_of_no_use_takes_little_of_a_value():
    def draw():
        torch.manual_seed(0)
        large = torch.randn(3000, 3000)
        return large, torch.rand(3000, 3000), torch.randint(0, 9, (3,)).tolist()

    assert_same(lambda: draw()[-1], limits=ValueLimits(nbytes=2**24))


def test_what_is_kept_for_later_values_counts(monkeypatch):
    memory = SimpleNamespace(available=2**27)
    monkeypatch.setattr(value_budget.psutil, "virtual_memory", lambda: memory)
    with record():
        x = torch.ones(2**22)  # 16 MiB, which are kept
        assert x.sum().item() == 2**22
        with pytest.raises(ValueLimitError, match=r"\(36\.0 MiB are allowed"):
            x.repeat(2).sum().item()  # 16 + 32 of (128 + 16) / 4 MiB
        assert x[1:].cumsum(0)[-1].item() == 2**22 - 1  # 16 + 16 MiB


def test_the_memory_of_a_container_is_what_it_has_left(tmp_path, monkeypatch):
    group = tmp_path, "memory.max", "memory.current"
    monkeypatch.setattr(value_budget, "CONTROL_GROUPS", (group,))
    cpu = torch.device("cpu")
    free = value_budget.free_nbytes(cpu)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("3000\n")
    (tmp_path / "memory.stat").write_text("anon 2000\ninactive_file 500\n")
    assert value_budget.free_nbytes(cpu) > free // 2
    (tmp_path / "memory.max").write_text("4000\n")
    assert value_budget.free_nbytes(cpu) == 4000 - 3000 + 500


IN_A_LIMIT = """
import sys
import psutil
import torch
import meta_magic as mm

with mm.record():
    small, large = torch.ones(3), torch.ones(2**14, 2**14)  # 1 GiB
    small.sum().item()
    process = psutil.Process()
    most = process.memory_info().vms + int(sys.argv[1])
    process.rlimit(psutil.RLIMIT_AS, (most, most))
    try:
        (large @ large).sum().item()
    except mm.MetaMagicError as error:
        print(type(error).__name__, small.cumsum(0)[-1].item())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no other system has the limit")
@pytest.mark.parametrize("room", [2**29, 2**26])  # enough to measure rates, or not
def test_a_value_that_a_limit_of_the_process_forbids_is_refused(room):
    line = [sys.executable, "-c", IN_A_LIMIT, str(room)]
    ran = subprocess.run(line, capture_output=True, check=True, text=True)
    assert ran.stdout == "ValueLimitError 3.0\n"


def multiply():
    x = torch.ones(1000, 1000)  # 2 GFLOPs
    return (x @ x).sum()


def test_a_value_that_takes_too_long_names_seconds_that_are_enough():
    with (
        pytest.raises(ValueLimitError, match="--value-seconds") as caught,
        record(limits=ValueLimits(seconds=1e-6)),
    ):
        multiply().item()
    (wanted,) = caught.value.wanted.items()
    assert wanted[0] == "seconds"
    with record(limits=ValueLimits(seconds=1000 * wanted[1])):
        assert multiply().item() == 10**9


def test_all_limits_that_are_too_low_are_named_at_once():
    limits = ValueLimits(nbytes=10**6, flops=10**8, seconds=1e-6)
    with pytest.raises(ValueLimitError) as caught, record(limits=limits):
        multiply().item()  # two matrices of 4 MB, and a number
    assert caught.value.wanted == {"nbytes": 8e6, "flops": 2.1e9, "seconds": 1}
    assert "--value-nbytes 8e6 --value-flops 2.1e9 --value-seconds 1 or" in str(
        caught.value
    )


def test_a_check_names_the_timeout_that_is_enough():
    seconds = {"seconds": 20.0}
    options = Options(is_check=True)
    assert advise_more(ValueLimitError("", seconds), options) == ["--timeout 600"]
    request = Request(subject=read_subject(__file__), seconds=600)
    assert pick_seconds(request) == seconds["seconds"]
    more = {**seconds, "nbytes": 8}
    assert advise_more(ValueLimitError("", more), options) == []


def test_all_values_of_a_recording_take_six_times_as_long_at_most():
    with (
        pytest.raises(ValueLimitError, match="values of this block took 0 s"),
        record(limits=ValueLimits(seconds=1e-3)),
    ):
        for _ in range(10_000):
            torch.ones(100).sum().item()


def test_what_nobody_asked_for_takes_its_share_of_each_limit():
    limits = ValueLimits(nbytes=800, flops=80, seconds=8.0)
    assert limits.little(8) == ValueLimits(nbytes=100, flops=10, seconds=1.0)
    assert limits.little() == limits


def test_little_is_computed_where_a_guess_can_stand_for_the_value():
    def read():
        return torch.ones(2**24 + 1).sum().item()  # 64 MiB and 8 bytes

    with record():
        assert read() == read()
    with record(assume="values=nan") as trace:
        met = read()
    assert met != met  # noqa: PLR0124  it is nan
    assert trace.program.assumptions


@pytest.fixture
def shown(monkeypatch):
    """Return the lines of progress that are shown, each step one."""
    lines: list[str] = []
    monkeypatch.setattr(value_budget, "FIRST_AFTER", 0)
    monkeypatch.setattr(value_budget, "EVERY", 0)
    progress.OUTLETS.append(lines.append)
    yield lines
    progress.OUTLETS.remove(lines.append)


def test_a_line_says_which_value_is_computed_and_how_to_go_on(shown):
    with record():
        loss = torch.ones(3).square().sum()
        f"{loss:.2f}"
    line = test_a_line_says_which_value_is_computed_and_how_to_go_on.__code__
    assert shown[0].startswith(f"loss, line {line.co_firstlineno + 3}: 0.0 s of about ")
    assert shown[0].endswith("(to go on without: --assume values=nan)")
    assert len(shown) == 4  # ones, square, sum
    assert shown[-1] == ""


def test_a_line_of_progress_leaves_no_trace(monkeypatch):
    def positions():
        with record() as trace:
            torch.rand(3)
            torch.get_rng_state().sum()  # replays the draw, and has no row at its call
        return trace.program.positions

    in_time = positions()
    monkeypatch.setattr(value_budget, "FIRST_AFTER", 0)
    assert positions() == in_time


def test_a_line_is_replaced_in_the_output_of_a_cell(monkeypatch):
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    monkeypatch.setattr(progress.sys, "stdout", stream)
    monkeypatch.setattr(progress.sys, "stderr", io.StringIO())
    progress.write_to_terminal("64 of 200, 9 s left")
    progress.write_to_terminal("")
    first, second = (line for line in stream.getvalue().split("\r") if line)
    assert first.strip() == "64 of 200, 9 s left"
    assert (second.strip(), len(second)) == ("", len(first))
