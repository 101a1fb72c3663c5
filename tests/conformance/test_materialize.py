"""A module that was materialized is, to the bit, the one that the CPU builds directly.

Names, values, dtypes, strides, ties and generators are compared in
``tests.conformance.exactness``; importing torch's module database there calls
``torch.backends.disable_global_flags()`` for the process.
"""

import random

import pytest
import torch
from torch import nn

import meta_magic as mm
from tests.conformance.constructions import CONSTRUCTIONS, LIMITS
from tests.conformance.exactness import (
    build_both,
    compute_both,
    differences,
    read_tensors,
    seed,
)
from tests.conformance.torch_modules import MODULES
from tests.conformance.torch_modules import make_build as make_torch_build

pytest.importorskip("transformers")

from tests.conformance.architectures import (
    ARCHITECTURES,
    USUAL,
    find_inputs,
    is_known,
    make_build,
)

pytestmark = pytest.mark.filterwarnings("ignore")

each_construction = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xfail(strict=True, reason=LIMITS[name]))
        if name in LIMITS
        else name
        for name in CONSTRUCTIONS
    ],
)
each_usual_architecture = pytest.mark.parametrize("name", USUAL[::2])
each_architecture = pytest.mark.parametrize(
    "name", [name for name in ARCHITECTURES if name not in USUAL[::2]]
)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", [*MODULES][::2])  # all: ``materialize_table``
def test_a_module_of_torch_is_the_one_that_the_cpu_builds(name):
    assert build_both(make_torch_build(name))[2] == []


@each_construction
def test_a_special_construction_is_the_one_that_the_cpu_runs(name):
    assert build_both(CONSTRUCTIONS[name])[2] == []


def check_architecture(name):
    """Compare an architecture with the direct one, and then what they compute."""
    if not is_known(name):
        pytest.skip("the installed transformers has no such architecture")
    direct, module, found = build_both(make_build(name))
    assert found == []
    inputs = find_inputs(direct.eval())
    if inputs is None:
        pytest.skip("built equal; no simple input is known")
    assert compute_both(module.eval(), direct, inputs) == []


@each_usual_architecture
def test_an_architecture_is_the_one_that_the_cpu_builds_and_computes_the_same(name):
    check_architecture(name)


@pytest.mark.sweep
@each_architecture
def test_a_rare_architecture_is_so_too(name):
    check_architecture(name)


def test_each_submodule_alone_gets_what_it_has_within_the_whole():
    build = make_build("bert")
    seed()
    direct = build()
    seed()
    with mm.record() as _:
        module = build()
    names = [name for name, child in module.named_modules() if not [*child.children()]]
    random.Random(0).shuffle(names)
    for name in names:
        part = module.get_submodule(name)
        mm.materialize(part)
        wanted = read_tensors(direct.get_submodule(name))
        assert differences(read_tensors(part), wanted) == []


def test_the_whole_is_equal_after_some_of_it_was_materialized_alone():
    build = make_build("gpt2")
    seed()
    direct = build()
    seed()
    with mm.record():
        module = build()
    mm.materialize(module.transformer.h[1])
    mm.materialize(module)
    assert differences(read_tensors(module), read_tensors(direct)) == []


def test_modules_of_one_recording_can_be_materialized_in_any_order():
    def build():
        return [nn.Linear(4, 4), nn.LSTM(4, 3), nn.Embedding(9, 4)]

    seed()
    direct = build()
    seed()
    with mm.record():
        modules = build()
    for module, wanted in zip(reversed(modules), reversed(direct), strict=True):
        mm.materialize(module)
        assert differences(read_tensors(module), read_tensors(wanted)) == []
