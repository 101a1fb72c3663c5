"""The tools of torch neither break nor are broken inside of ``record()``."""

import pytest
import torch
from torch import nn

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


def test_a_function_compiled_before_is_recorded_inside():
    compiled = torch.compile(lambda x: x.sin() + 1, backend="eager")
    compiled(torch.ones(2))
    trace = assert_same_as_plain_meta(lambda: compiled(torch.randn(2)))
    assert "aten.sin.default" in [call.op for call in trace.ops]
