"""How modules are called in a cost."""

from torch import nn

from meta_magic import record
from meta_magic.cost.costs import build_lineages, name_roots
from meta_magic.trace.modules import ModuleNode


def node(name, class_name="Linear"):
    return ModuleNode(name=name, fqn="", class_name=class_name, tensors=(), children=())


def test_roots_of_one_name_are_numbered_and_those_without_go_by_their_class():
    roots = [node("model"), node(""), node("model"), node("", "GRU"), node("model")]
    names = ["model", "Linear", "model (2)", "GRU", "model (3)"]
    assert [*name_roots(roots)] == names


def test_a_lineage_leads_from_a_module_to_its_root():
    with record() as trace:
        model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))  # noqa: F841
    lineages = build_lineages(trace.program, trace.modules)
    assert ("model.0.0", "model.0", "model") in lineages
    assert ("model",) in lineages


def test_a_module_that_is_gone_has_none():
    with record() as trace:
        nn.Linear(2, 2)
    assert {*build_lineages(trace.program, trace.modules)} == {()}
