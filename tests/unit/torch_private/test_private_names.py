"""Each private name of torch that we stand on does what we need of it."""

from importlib.util import find_spec
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from meta_magic.torch_private import (
    dispatcher,
    modes,
    replacing,
    snapshot,
    tensor_internals,
)
from meta_magic.torch_private import module_internals as modules
from meta_magic.torch_private import tensor_internals as tensors
from meta_magic.torch_private.replacing import Replacements

MANY = ("DEVICE_OF_CHUNKED_LOSSES", "MAKE_SUBCLASS", "JIT_TRACES", "STORAGE_READERS")
VALUES = ("CUDA_VERSION", "PROFILE_OF_THREADS")
OTHER_TESTS = {"CAPTURABLE_DEVICES", "CUDA_IS_THERE"}
OTHERS = {*OTHER_TESTS, *MANY, *VALUES}
PLACES = [n for n, place in vars(replacing).items() if isinstance(place, tuple)]
SINGLE = [n for n in PLACES if n.isupper() and n not in OTHERS]


@pytest.mark.parametrize("name", [*SINGLE, *MANY, *VALUES])
def test_what_is_replaced_is_there(name):
    place = getattr(replacing, name)
    found = [getattr(*one) for one in (place if name in MANY else [place])]
    assert name in VALUES or all(map(callable, found))


def test_whether_cuda_is_initialized_is_a_flag():
    assert isinstance(getattr(*replacing.CUDA_IS_THERE), bool)


def test_backend_flags_have_their_defaults_and_setters():
    for flag in snapshot.FLAGS.values():
        assert all(callable(getattr(*place)) for place in flag.setters)
        assert flag.read() == flag.default


def test_the_compiler_is_where_it_was():
    assert find_spec(replacing.DYNAMO) is not None


def test_optimizers_name_the_devices_on_which_they_are_capturable():
    found = [module.__name__ for module, _ in replacing.CAPTURABLE_DEVICES]
    assert "torch.optim.adamw" in found or "torch.optim.adam" in found


def test_a_backward_node_has_the_number_that_was_next_before_its_forward():
    x = torch.ones(2, requires_grad=True)
    number = tensor_internals.next_sequence_number()
    y = x * 2
    assert tensor_internals.sequence_number_of(y.grad_fn)() == number


def test_there_is_a_current_node_in_backward_alone():
    seen = []
    x = torch.ones(2, requires_grad=True)
    y = (x * 2).sum()
    x.register_hook(lambda _: seen.append(tensor_internals.current_autograd_node()))
    y.backward()
    assert tensor_internals.current_autograd_node() is None
    assert seen


def test_hooks_are_read_and_given_to_another_tensor():
    seen = []
    first, second = (torch.ones(1, requires_grad=True) for _ in range(2))
    first.register_hook(lambda _: seen.append("gradient"))
    first.register_post_accumulate_grad_hook(lambda _: seen.append("accumulated"))
    tensor_internals.set_hooks(second, tensor_internals.read_hooks(first))
    (second * 2).sum().backward()
    assert "accumulated" in seen


def test_the_tensors_on_a_storage_are_counted():
    x = torch.zeros(2, device="meta")
    view = x[1:]
    storage = x.untyped_storage()
    address = tensors.address_of_storage(storage)
    assert tensors.count_owners(address) == len([x, view])


def test_a_view_counts_the_writes_of_its_base_and_data_does_not():
    x = torch.zeros(2, device="meta")
    assert [tensors.is_counted_with(t, x) for t in (x[1:], x.data)] == [True, False]
    assert tensors.version_of(x) == 0


def test_the_names_on_tensors_modules_and_generators_are_there():
    x = torch.zeros(2)
    layer = torch.nn.BatchNorm1d(2)
    assert tensors.address_of_storage(x.untyped_storage())
    assert tensors.address_of_generator(torch.default_generator)
    assert tensors.version_of(x.add_(1)) == 1
    assert tensors.is_view(x[0])
    assert not tensors.is_zero_tensor(x)
    assert tensors.negate_lazily(x).is_neg()
    assert tensors.parts_of(torch.eye(2).to_sparse())[0].shape == (2, 2)
    assert [*modules.parameters_of(layer)] == ["weight", "bias"]
    assert "running_mean" in modules.buffers_of(layer)
    assert modules.children_of(layer) == {}
    assert modules.names_not_persistent(layer) == set()
    assert dispatcher.schema_of(torch.ops.aten.add.Tensor).arguments[0].name == "self"


def test_the_flags_that_a_dispatch_mode_sets_exist():
    assert all(hasattr(modes.python_dispatch, name) for name in modes.DISPATCH_FLAGS)


def test_the_default_device_is_read_from_a_device_context_on_the_stack():
    mode = modes.DeviceContext("meta")
    modes.push_function_mode(mode)
    try:
        assert torch.get_default_device() == torch.device("meta")
    finally:
        modes.pop_function_mode()


def test_a_kernel_of_meta_can_be_overridden_and_taken_back():
    def twice(a):
        return torch.empty(2 * a.shape[0], device="meta")

    before = torch.ops.aten.trace(torch.eye(3, device="meta")).shape
    library = dispatcher.override_kernels({"trace": twice})
    try:
        assert torch.ops.aten.trace(torch.eye(3, device="meta")).shape == (6,)
    finally:
        dispatcher.destroy_library(library)
    assert torch.ops.aten.trace(torch.eye(3, device="meta")).shape == before


def test_an_operator_runs_the_kernel_of_a_key():
    key = dispatcher.DispatchKey.CompositeImplicitAutograd
    linear = torch.ops.aten.linear.default
    made = dispatcher.run_kernel(linear, key, (torch.ones(1, 2), torch.ones(3, 2)), {})
    assert made.tolist() == [[2, 2, 2]]


def test_kernels_of_higher_order_operators_ask_for_the_mode_by_its_name():
    kernels = dispatcher.higher_order_operators["cond"].py_kernels
    kernel = kernels[dispatcher.DispatchKey.CompositeExplicitAutograd]
    assert dispatcher.ASKS_MODE in kernel.__code__.co_names


def test_a_higher_order_operator_looks_for_its_kernel_again():
    operator = dispatcher.higher_order_operators["cond"]
    key = dispatcher.DispatchKey.AutogradMeta
    operator._dispatch_cache[key] = "stale"
    dispatcher.forget_kernel(operator, key)
    assert key not in operator._dispatch_cache


def test_autocast_is_turned_on_where_torch_turned_it_off():
    region = torch.autocast("cpu", enabled=False)
    replacing.enable_autocast(region, is_enabled=True)
    with region:
        assert torch.is_autocast_enabled("cpu")


def test_loading_is_known_by_its_code_and_its_variables():
    names = modules.LOADING.co_varnames
    assert {modules.LOADED, modules.IS_ASSIGNING} <= {*names}
    assert modules.initialize_truncated.__name__.startswith(modules.PREFIX)


def build_circle():
    above, below = nn.Sequential(nn.Linear(2, 3)), nn.Sequential(nn.Linear(3, 2))
    above.add_module("below", below)
    below.add_module("above", above)
    return above


def test_a_module_at_two_places_is_walked_at_both_as_torch_does():
    shared = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    root = nn.ModuleDict({"a": shared, "b": nn.ModuleList([shared, None])})
    walked = [*root.named_modules(remove_duplicate=False)]
    assert [*modules.walk_modules(root)] == walked


def test_a_module_within_itself_is_walked_once():
    names = [name for name, _ in islice(modules.walk_modules(build_circle()), 9)]
    assert names == ["", "0", "below", "below.0"]


@pytest.fixture
def home():
    return SimpleNamespace(first="first", second="second")


@pytest.fixture
def entered(home):
    replacements = [Replacements(), Replacements()]
    for one in replacements:
        one.replace_all(home, {"first": "other first", "second": "other second"})
    return replacements


@pytest.mark.parametrize("order", [1, -1])
def test_what_two_recordings_replace_is_restored_after_both(home, entered, order):
    before, after = entered[::order]
    before.restore()
    assert vars(home) == {"first": "other first", "second": "other second"}
    after.restore()
    assert vars(home) == {"first": "first", "second": "second"}


def test_what_somebody_else_put_there_meanwhile_stays(home, entered):
    home.first = "mine"
    for one in entered:
        one.restore()
    assert vars(home) == {"first": "mine", "second": "second"}
