"""Every public name has an example in its docstring, and the examples are true."""

import builtins
import doctest
import importlib
import inspect

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from torch import nn

import meta_magic
from meta_magic.cost.device_table import known_devices
from tests.house import MODULES

BOARD = """
[my-board]
title = "My board"
bandwidth = 1.2e12
memory = 32e9
source = "https://..."
flops = { bfloat16 = 200e12, float32 = 50e12 }
"""
FILES = {"my-devices.toml": BOARD, "empty-devices.toml": "[my-board]"}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
OTHERS = [
    name for name, path in MODULES.items() if name and ">>>" in path.read_text("utf-8")
]
SKIPPED = {
    f"meta_magic.trace.questions.Questions.{name}"
    for name in ("annotate", "check", "dims", "fit", "scale", "sweep", "why")
}
"""They run their block again, which needs the variables of a module."""


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What an example knows: the public names, torch, and two files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        builtins, "_", None, raising=False
    )  # Python keeps results there
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, "utf-8")
    public = {name: getattr(meta_magic, name) for name in meta_magic.__all__}
    yield {**public, "torch": torch, "nn": nn, "shell": InteractiveShell()}
    known_devices().pop("my-board", None)


def run_examples(found):
    """Run examples; return how many there were, and what went wrong."""
    said = []
    results = [
        doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append)
        for test in found
    ]
    return sum(result.attempted for result in results), "".join(said)


@pytest.mark.parametrize("name", meta_magic.__all__)
def test_each_public_name_has_an_example_that_is_true(name, names):
    value = getattr(meta_magic, name)
    text = inspect.getdoc(value)
    example = doctest.DocTestParser().get_doctest(text, names, name, None, None)
    n_run, said = run_examples([example])
    assert n_run > 0
    assert not said


@pytest.mark.parametrize("name", OTHERS)
def test_all_other_examples_are_true(name, names):
    module = importlib.import_module(f"meta_magic.{name}")
    found = doctest.DocTestFinder().find(module, globs=names)
    _, said = run_examples(
        [one for one in found if one.examples and one.name not in SKIPPED]
    )
    assert not said
