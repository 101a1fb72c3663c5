"""The tools of torch neither break nor are broken inside of ``record()``."""

import copy
import io
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset, random_split

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


def test_deep_copies_of_modules_work():
    assert_same_as_plain_meta(lambda: copy.deepcopy(make_model()))


def test_deep_copies_of_parameters_with_gradients_work():
    def program():
        model = make_model()
        model(torch.randn(2, 4)).sum().backward()
        return list(copy.deepcopy(model).parameters())

    assert_same_as_plain_meta(program)


@pytest.mark.parametrize("weights_only", [True, False])
def test_a_saved_state_dict_can_be_loaded_inside(weights_only):
    def program():
        file = io.BytesIO()
        torch.save(make_model().state_dict(), file)
        file.seek(0)
        return torch.load(file, weights_only=weights_only)

    assert_same_as_plain_meta(program)


def test_a_saved_module_can_be_loaded_inside():
    def program():
        file = io.BytesIO()
        torch.save(make_model(), file)
        file.seek(0)
        return torch.load(file, weights_only=False)

    assert_same_as_plain_meta(program)


def test_a_subclass_of_a_module_runs():
    assert_same_as_plain_meta(lambda: Doubling(4, 2)(torch.randn(3, 4)))


def test_a_module_made_outside_runs_inside():
    with torch.device("meta"):
        model = make_model()
    trace = assert_same_as_plain_meta(lambda: model(torch.randn(2, 4)))
    assert [node.class_name for node in trace.modules] == ["Sequential"]


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


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_data_loader_gives_batches(shuffle):
    def program():
        dataset = TensorDataset(torch.randn(10, 3), torch.zeros(10))
        return list(DataLoader(dataset, batch_size=4, shuffle=shuffle))

    with record():
        batches = program()
    assert [tuple(x.shape) for x, _ in batches] == [(4, 3), (4, 3), (2, 3)]
    assert all(x.is_meta for batch in batches for x in batch)


def test_a_random_split_can_be_loaded():
    with record():
        parts = random_split(TensorDataset(torch.randn(10, 3)), [7, 3])
        (batch,) = next(iter(DataLoader(parts[0], batch_size=7)))
    assert [len(part) for part in parts] == [7, 3]
    assert tuple(batch.shape) == (7, 3)


COMPILE = """
{first_import}
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


@pytest.mark.parametrize("first_import", ["", "import torch._dynamo"])
def test_compiled_code_is_recorded_and_later_code_still_compiles(first_import):
    script = COMPILE.format(first_import=first_import)
    result = subprocess.run(
        [sys.executable, "-c", script],
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


def scripted(x, n: int):
    return x.relu() * n


def test_scripted_functions_run():
    assert_same_as_plain_meta(lambda: torch.jit.script(scripted)(torch.randn(3), 2))


def test_scripted_modules_run():
    assert_same_as_plain_meta(
        lambda: torch.jit.script(nn.Linear(4, 2))(torch.randn(3, 4))
    )


def test_modules_can_be_traced_symbolically():
    def program():
        traced = torch.fx.symbolic_trace(make_model())
        return [str(node.op) for node in traced.graph.nodes], traced(torch.randn(2, 4))

    assert_same_as_plain_meta(program)


def test_modules_can_be_exported():
    def program():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.export.export(make_model(), (torch.randn(2, 4),))
        returned = exported.module()(torch.randn(2, 4))
        return [str(node.target) for node in exported.graph.nodes], returned

    assert_same_as_plain_meta(program)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing_runs_backward(use_reentrant):
    def program():
        model, x = make_model(), torch.randn(2, 4, requires_grad=True)
        checkpoint(model, x, use_reentrant=use_reentrant).sum().backward()
        return x, list(model.parameters())

    assert_same_as_plain_meta(program)
