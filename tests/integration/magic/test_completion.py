"""What is completed on the line of ``%%meta`` and ``%meta``."""

from types import SimpleNamespace

import pytest
from IPython.core.completer import provisionalcompleter
from torch import nn

from meta_magic.magic.extension import LineCompleter, complete_path
from meta_magic.magic.line_options import VALUES_BY_NAME
from meta_magic.magic.materialize_line import list_values
from meta_magic.materializing.fills.inits import INITS
from meta_magic.trace.options import DEVICES, MEANINGS
from tests.unit.untouchable import Keeping, Listing, Pretending, forbid

OPTIONS = set(VALUES_BY_NAME)


def complete(shell, text, cursor=None):
    with provisionalcompleter():
        found = shell.Completer.completions(
            text, len(text) if cursor is None else cursor
        )
        return {completion.text for completion in found}


def test_the_options_are_completed(shell):
    assert complete(shell, "%%meta -") == OPTIONS


def test_the_options_are_completed_above_a_body(shell):
    line = "%%meta -q --"
    found = complete(shell, f"{line}\nx = 1", len(line))
    assert found == {option for option in OPTIONS if option.startswith("--")}


@pytest.mark.parametrize("text", ["%%meta\nx = 1\n-", "%%meta -q\n--o", "%%meta\nx.si"])
def test_the_body_is_completed_as_without_the_magic(shell, text):
    found = complete(shell, text)
    shell.run_cell("%unload_ext meta_magic")
    assert found == complete(shell, text)
    shell.run_cell("%load_ext meta_magic")


def test_another_magic_that_begins_alike_is_left_alone(shell):
    assert not OPTIONS & complete(shell, "%%metal --")


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("%%meta --as ", {"cpu", "cuda", "meta"}),
        ("%%meta --as=c", {"--as=cpu", "--as=cuda"}),
        ("%%meta -q --named r", {"real"}),
        ("%meta --assume n", {"nonzero=all", "nonzero=0.5"}),
        ("%meta materialize model --init ", set(INITS)),
        ("%meta materialize model --state ", {"current", "constructed"}),
        ("%meta materialize model --dtype b", {"bfloat16"}),
        ("%meta materialize model --device cp", {"cpu"}),
    ],
)
def test_the_values_of_an_option_are_completed(shell, line, values):
    assert complete(shell, line) == values


@pytest.mark.parametrize("name", ["--as", "--assume", "--named"])
def test_each_value_that_is_offered_is_taken(shell, name):
    for value in VALUES_BY_NAME[name]:
        shell.run_cell(f"%%meta -q {name} {value}\ntorch.ones(2)").raise_error()


def test_every_device_and_meaning_is_offered():
    assert VALUES_BY_NAME["--as"] == DEVICES
    assert VALUES_BY_NAME["--named"] == MEANINGS


def test_what_meta_does_besides_statements_is_completed(shell):
    assert "materialize" in complete(shell, "%meta mat")
    assert {"materialize", "full"} <= complete(shell, "%meta ")


@pytest.fixture
def models(shell):
    """The shell with a module in it, and a list and a dict of some."""
    layers = nn.ModuleList([nn.Sequential(nn.Linear(2, 2)), nn.ReLU()])
    model = nn.ModuleDict({"layers": layers, "no name": nn.ReLU(), "last": nn.ReLU()})
    shell.user_ns |= {"model": model, "models": [model], "moved": 1, "_mine": model}
    shell.user_ns["more"] = {"a b": model, 3: 4}
    return shell


@pytest.mark.parametrize(
    ("typed", "paths"),
    [
        ("mo", {"model", "models", "more"}),
        ("model.", {"model.layers", "model.last"}),
        ("model.la", {"model.layers", "model.last"}),
        ("model.layers[", {"model.layers[0]", "model.layers[1]"}),
        ("model.layers[0][", {"model.layers[0][0]"}),
        ("models[", {"models[0]"}),
        ("models[0].las", {"models[0].last"}),
        ("more['a", {"more['a b']"}),
        ("_m", {"_mine"}),
    ],
)
def test_modules_are_completed_after_materialize(models, typed, paths):
    assert complete(models, f"%meta materialize {typed}") == paths


def test_a_path_is_completed_on_any_line_and_after_an_assignment(models):
    cell = "x = 1\nreport = %meta materialize model.la"
    assert complete(models, cell) == {"model.layers", "model.last"}


class Naming(nn.Sequential):
    named_children = __iter__ = forbid


class Unfinished(nn.Module):
    def __init__(self):
        pass  # and so it has no children, not even none


def test_completion_asks_no_class_of_the_user():
    layer = nn.ReLU()
    namespace = {
        "odd": Pretending(),
        "listed": Listing([layer, Pretending()]),
        "kept": Keeping({"a": layer, Pretending(): layer}),
        "named": Naming(layer),
        "unfinished": Unfinished(),
    }
    assert complete_path(namespace, "") == [*namespace][1:]
    assert complete_path(namespace, "listed[") == ["listed[0]"]
    assert complete_path(namespace, "kept[") == ["kept['a']"]
    assert complete_path(namespace, "named[") == ["named[0]"]
    assert complete_path(namespace, "unfinished.") == []


def test_what_is_completed_can_be_evaluated():
    odd = nn.Module()
    odd.add_module("0", nn.ReLU())
    odd.add_module("class", nn.ReLU())
    named = nn.Sequential(nn.ModuleDict({"no name": nn.ReLU(), "last": odd}))
    namespace = {"named": named}
    typed = ("named[", "named[0][", "named[0].", "named[0].last.")
    known = {path for start in typed for path in complete_path(namespace, start)}
    found = {id(eval(path, namespace)) for path in known}
    assert found == {id(module) for module in named.modules()} - {id(named)}


def test_the_hook_of_an_old_ipython_completes_the_part_of_the_word(models):
    completer = LineCompleter(models, VALUES_BY_NAME, ("materialize",), list_values)
    event = SimpleNamespace(symbol="c", text_until_cursor="%%meta --as=c")
    assert completer.answer_hook(models, event) == ["cpu", "cuda"]
    event.text_until_cursor = "%meta materialize model.layers["
    event.symbol = ""
    assert completer.answer_hook(models, event) == ["0]", "1]"]
    completer.remove()
