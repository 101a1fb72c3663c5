"""The tools of torch neither break nor are broken inside of ``record()``."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import meta_magic
from meta_magic.session.record import record
from tests.integration.same_as_meta import assert_same_as_plain_meta

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Doubling(nn.Linear):
    """A subclass of a torch module that calls its base."""

    def forward(self, x):
        return super().forward(x) * 2


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), Doubling(8, 3))


def test_hooks_of_the_user_run_in_their_order_and_change_the_result():
    def program():
        model, seen = make_model(), []
        model[0].register_forward_pre_hook(lambda m, args: seen.append("pre"))
        model[0].register_forward_hook(
            lambda m, args, out: seen.append("post") or out[:1]
        )
        model.register_forward_hook(
            lambda m, args, kwargs, out: seen.append("root"), with_kwargs=True
        )
        model.register_full_backward_hook(lambda m, gi, go: seen.append("backward"))
        model(torch.randn(2, 4, requires_grad=True)).sum().backward()
        return seen, model(torch.randn(2, 4))

    assert_same_as_plain_meta(program)


def test_hooks_on_every_module_run_and_stay_registered():
    seen = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda m, args, out: seen.append(type(m).__name__)
    )
    try:
        with record():
            model = make_model()
            model(torch.randn(2, 4))
        model(torch.empty(2, 4, device="meta"))
    finally:
        handle.remove()
    assert seen == ["Linear", "Tanh", "Doubling", "Sequential"] * 2


COMPILE = """
import torch
from meta_magic.session.record import record

with record() as trace:
    inside = torch.compile(torch.nn.Linear(4, 2), backend="eager")
    y = inside(torch.randn(3, 4))
assert tuple(y.shape) == (3, 2) and y.is_meta
assert "aten.addmm.default" in [call.op for call in trace.ops], list(trace.ops)

import torch._dynamo
torch._dynamo.utils.counters.clear()
def double(x):
    return x * 2 + 1
assert torch.compile(double, backend="eager")(torch.ones(3)).tolist() == [3, 3, 3]
torch.compile(inside, backend="eager")(torch.empty(3, 4, device="meta"))
assert torch._dynamo.utils.counters["frames"]["ok"] == 2, torch._dynamo.utils.counters
"""


def test_compiled_code_is_recorded_and_later_code_still_compiles():
    result = subprocess.run(
        [sys.executable, "-c", COMPILE],
        cwd=Path(meta_magic.__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_a_function_compiled_before_is_recorded_inside():
    compiled = torch.compile(lambda x: x.sin() + 1, backend="eager")
    compiled(torch.ones(2))
    trace = assert_same_as_plain_meta(lambda: compiled(torch.randn(2)))
    assert "aten.sin.default" in [call.op for call in trace.ops]
