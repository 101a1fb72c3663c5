"""What is no module and holds tensors: containers, schedulers, batches, hooks."""

import functools
import gc
import weakref
from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from meta_magic import materialize, record
from meta_magic.materializing.targets import find_on_meta
from tests.unit.eager import assert_same_tensor, build_twice


@dataclass(slots=True)
class Batch:
    x: torch.Tensor
    y: torch.Tensor


class Scheduler:
    """As those of diffusers: plain tensors as attributes."""

    def __init__(self):
        self.betas = torch.linspace(0.1, 0.2, 5)
        self._alphas = {"cumulative": (1 - self.betas).cumprod(0)}


Pair = namedtuple("Pair", "first second")  # noqa: PYI024  as older code has it


def make_closure():
    mask = torch.arange(3)

    def scale(x, factor=torch.full((3,), 2.0)):  # noqa: B008  as users write it
        return x * mask * factor

    return scale


OBJECTS = {
    "a tensor": (lambda: torch.randn(3), lambda x: [x]),
    "a list": (lambda: [torch.randn(3), 2], lambda x: x[:1]),
    "a dictionary": (lambda: {"a": {"b": torch.randn(3)}}, lambda x: [x["a"]["b"]]),
    "a named tuple": (lambda: Pair(torch.randn(2), torch.ones(2)), list),
    "a set": (lambda: {torch.ones(2)}, list),
    "a dataclass": (lambda: Batch(torch.randn(2), torch.ones(3)), lambda b: [b.x, b.y]),
    "a scheduler": (Scheduler, lambda s: [s.betas, s._alphas["cumulative"]]),
    "a function": (make_closure, lambda f: [f(torch.ones(3))]),
    "a partial": (
        lambda: functools.partial(torch.add, torch.randn(3)),
        lambda f: [f(torch.ones(3))],
    ),
    "a pipeline": (
        lambda: SimpleNamespace(unet=nn.Linear(2, 2), scheduler=Scheduler()),
        lambda p: [p.unet.weight, p.scheduler.betas],
    ),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_gets_its_values(name):
    build, read = OBJECTS[name]
    real, made, _, _ = build_twice(build)
    materialize(made)
    for wanted, got in zip(read(real), read(made), strict=True):
        assert_same_tensor(got, wanted)


def test_tensors_are_named_as_one_writes_them():
    with record():
        made = SimpleNamespace(
            net=nn.Linear(2, 2),
            data={"x": [torch.ones(2)]},
            batch=Batch(1, torch.ones(2)),
        )
    names = [tensor.name for tensor in materialize(made).tensors]
    assert sorted(names) == ["batch.y", "data['x'][0]", "net.bias", "net.weight"]


def test_what_shares_memory_with_it_goes_on_to_do_so():
    def build():
        weight = torch.randn(4, 3)
        return weight, weight.view(12), weight.T, weight.detach()[1:]

    real, made, _, _ = build_twice(build)
    materialize(made[1])
    real[0][2, 1] = made[0][2, 1] = 7.0
    for wanted, got in zip(real, made, strict=True):
        assert_same_tensor(got, wanted)


def hook_of_a_parameter():
    module, mask = nn.Linear(3, 1), torch.tensor([0.0, 1.0, 2.0])
    module.weight.register_hook(lambda grad: grad * mask)
    return module


def hook_of_a_module():
    module, mean = nn.Linear(3, 1), torch.full((3,), 0.5)
    module.register_forward_pre_hook(lambda _, given: (given[0] - mean,))
    return module


def default_of_forward():
    class Shifted(nn.Linear):
        offset = torch.full((1,), 3.0)

        def forward(self, x, shift=torch.ones(3)):  # noqa: B008  as users write it
            return super().forward(x + shift) + self.offset

    return Shifted(3, 1)


def object_of_a_module():
    class Scaled(nn.Linear):
        def forward(self, x):
            return super().forward(x) * self.scheduler.betas[0]

    module = Scaled(3, 1)
    module.scheduler = Scheduler()
    return module


USED = [hook_of_a_parameter, hook_of_a_module, default_of_forward, object_of_a_module]


@pytest.mark.parametrize("build", USED)
def test_what_a_module_uses_is_made_real_with_it(build):
    real, made, _, _ = build_twice(build)
    materialize(made)
    x = torch.arange(6.0).view(2, 3)
    results = [module(x) for module in (real, made)]
    assert_same_tensor(results[1].detach(), results[0].detach())
    for result in results:
        result.sum().backward()
    assert_same_tensor(made.weight.grad, real.weight.grad)


def test_what_a_hook_holds_and_cannot_be_made_real_is_left_by_name():
    with record():
        made, odd = nn.Linear(3, 1), torch.eye(3).to_sparse()
        made.register_forward_pre_hook(lambda _, given: (odd @ given[0],))
    report = materialize(made)
    assert not made.weight.is_meta
    assert report.left == ("hook.odd",)
    assert "  LEFT ON META: 1 (hook.odd)" in str(report).splitlines()
    assert any("its layout is torch.sparse_coo" in note for note in report.notes)


@pytest.mark.parametrize("view", [torch.conj, lambda x: x.conj().imag])
def test_what_is_conjugated_or_negated_lazily_and_has_a_graph_is_made_real(view):
    def build():
        layer = nn.Linear(3, 2, dtype=torch.complex64)
        torch.manual_seed(0)
        nn.init.normal_(layer.weight)
        layer.kept = view(layer.weight * 2)
        return layer

    wanted = build()
    with record():
        layer = build()
    materialize(layer)
    assert layer.kept.requires_grad
    assert torch.equal(layer.kept.detach(), wanted.kept.detach())


def test_no_backward_pass_goes_through_a_graph_of_meta():
    with record():
        layer = nn.Linear(2, 2)
        loss = layer(torch.ones(1, 2)).sum()
    materialize([layer, loss])
    assert loss.requires_grad
    with pytest.raises(RuntimeError, match="its graph was recorded on meta"):
        (loss + layer(torch.ones(1, 2)).sum()).backward()


def test_what_variables_hold_on_meta_is_named_once_where_it_is_nearest():
    with record():
        net, x = nn.Linear(2, 2), torch.ones(2)
        scheduler = Scheduler()
    held = {"net": net, "deep": [{"x": x}], "scheduler": scheduler, "x": x, "_y": x}
    held["mine"] = torch.ones(2, device="meta")
    assert [*find_on_meta(held)] == [
        "net",
        "x",
        "scheduler.betas",
        "scheduler._alphas['cumulative']",
    ]
    materialize(net)
    assert "net" not in [*find_on_meta(held)]


@pytest.mark.parametrize("maxsize", [None, 4])
def test_what_a_function_keeps_in_a_cache_is_made_real_with_the_module(maxsize):
    @functools.lru_cache(maxsize=maxsize)
    def make_table(n):
        return {"angles": torch.arange(n).outer(torch.ones(2)).cos()}, torch.randn(n, 2)

    class Rotary(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x):
            table, noise = make_table(len(x))
            return self.linear(x) * table["angles"] + noise

    def build_and_run():
        torch.manual_seed(0)
        module = Rotary()
        return module, module(torch.ones(3, 2))

    module, _ = build_and_run()
    wanted = [module(torch.full((3, 2), 2.0)) for _ in range(2)]
    make_table.cache_clear()
    with record():
        module, _ = build_and_run()
    with record():
        met = [module(torch.full((3, 2), 2.0)).tolist()]  # the next cell uses it
    report = materialize(module)
    met.append(module(torch.full((3, 2), 2.0)).tolist())
    assert met == [tensor.tolist() for tensor in wanted]
    assert "make_table(...)" in str(report)


@pytest.mark.parametrize("change", [torch.Tensor.double, lambda w: w.new_zeros(2, 2)])
def test_a_gradient_stays_that_of_what_data_replaced(change):
    with record():
        weight = nn.Parameter(torch.ones(3))
        weight.sum().backward()
        weight.data = change(weight.data)
    materialize(weight)
    assert torch.equal(weight.data, change(torch.ones(3)))
    assert (weight.grad.dtype, weight.grad.tolist()) == (torch.float32, [1, 1, 1])


def test_a_class_of_the_user_and_what_its_methods_use_may_be_deleted():
    def build():
        used = torch.ones(3)

        class Scale:
            def read(self):
                return used

        with record():
            layer = nn.Linear(2, 2)
            layer.scale = Scale()
        materialize(layer)
        return weakref.ref(used)

    used = build()
    gc.collect()
    assert used() is None
