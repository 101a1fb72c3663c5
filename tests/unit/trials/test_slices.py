"""The statements of earlier cells that a block rests on."""

import importlib
import linecache
import py_compile
import sys

import pytest

from meta_magic.trials.slices import find_edited, find_modules, list_imported
from meta_magic.trials.statements import choose_statements, read_statements

CELLS = {
    "what a name is bound by": (["a = 1", "b = 2"], "print(a)", ["a = 1"]),
    "what that reads": (["a = 1", "b = a + 1"], "b", ["a = 1", "b = a + 1"]),
    "only the last of two": (["a = 1", "a = 2"], "a", ["a = 2"]),
    "both where one may not bind": (
        ["a = 1", "if c:\n    a = 2"],
        "a",
        ["a = 1", "if c:\n    a = 2"],
    ),
    "a class twice": (
        ["class C:\n    x = 1", "class C:\n    x = 2"],
        "C",
        ["class C:\n    x = 2"],
    ),
    "what a function reads when it is called": (
        ["def f():\n    return n", "n = 3"],
        "f()",
        ["def f():\n    return n", "n = 3"],
    ),
    "a write to an attribute": (["m = M()", "m.x = 1"], "m", ["m = M()", "m.x = 1"]),
    "a write to an item": (["m = {}", "m['x'] = 1"], "m", ["m = {}", "m['x'] = 1"]),
    "a method called for its effect": (
        ["m = []", "m.append(1)", "other.append(2)"],
        "m",
        ["m = []", "m.append(1)"],
    ),
    "a function called for its effect": (
        ["m = M()", "init(m)"],
        "m",
        ["m = M()", "init(m)"],
    ),
    "a loop over what a model holds": (
        ["m = M()", "for p in m.parameters():\n    p.requires_grad_(False)"],
        "m",
        ["m = M()", "for p in m.parameters():\n    p.requires_grad_(False)"],
    ),
    "no print": (["m = M()", "print(m)"], "m", ["m = M()"]),
    "an import": (["import torch as t", "import os"], "t", ["import torch as t"]),
    "a patched class": (
        ["class C: pass", "C.f = lambda self: 1"],
        "C().f()",
        ["class C: pass", "C.f = lambda self: 1"],
    ),
    "a class that a decorator changes": (
        ["class C: pass", "@add_to(C)\ndef f(self): pass"],
        "C().f()",
        ["class C: pass", "@add_to(C)\ndef f(self): pass"],
    ),
    "no name of a local variable": (
        ["x = 1", "def f(x):\n    return x"],
        "f(2)",
        ["def f(x):\n    return x"],
    ),
    "augmented": (["n = 1", "n += 1"], "n", ["n = 1", "n += 1"]),
    "a class that is changed": (
        ["class A:\n    n = 1", "a = A()", "m = 3", "A.n = m"],
        "a",
        ["class A:\n    n = 1", "a = A()", "m = 3", "A.n = m"],
    ),
}


def choose(cells, block):
    texts = [*cells, block]
    statements = [
        one._replace(cell=n)
        for n, text in enumerate(texts)
        for one in read_statements(text)
    ]
    chosen = choose_statements(statements, len(texts) - 1)
    return [texts[one.cell] for one in chosen.statements][:-1], chosen.kept


def test_a_class_that_names_itself_and_functions_that_call_each_other_are_made_again():
    cells = (
        "class Net(M):\n    def __init__(self):\n        super(Net, self).__init__()",
        "def f(n):\n    return g(n)",
        "def g(n):\n    return f(n)",
        "f(Net())",
    )
    statements = [
        one._replace(cell=n)
        for n, text in enumerate(cells)
        for one in read_statements(text)
    ]
    assert choose_statements(statements, 3).unbound == {"M", "super"}


@pytest.mark.parametrize(("cells", "block", "expected"), CELLS.values(), ids=CELLS)
def test_a_block_rests_on(cells, block, expected):
    assert choose(cells, block) == (expected, [])


@pytest.mark.parametrize(
    "made",
    [
        "x = open('x.txt').read()",
        "x = torch.load('x.pt')",
        "x = pd.read_csv('x.csv')",
        "x = requests.get(url)",
        "x = input()",
        "x = get_ipython().getoutput('ls')",
    ],
)
def test_what_reads_files_or_asks_is_not_run_again(made):
    assert choose(["x = 0", made, "y = x"], "y") == (["y = x"], ["x"])


LOADED = "x = torch.load('x.pt')"


@pytest.mark.parametrize(
    ("after", "chosen", "kept"),
    [
        (["x = x.flatten(1)"], [], ["x"]),
        (["x.resize_(3)"], [], ["x"]),
        (["y = x + 1"], ["y = x + 1"], ["x"]),
        (["y = x + 1", "x = x.flatten(1)"], [], ["x", "y"]),
        (["y = x + 1", "z = y", "x += 1"], ["z = y"], ["x", "y"]),
        (["x, y = x[0], 3"], [], ["x", "y"]),
    ],
)
def test_a_variable_that_is_used_as_it_is_stays_so(after, chosen, kept):
    """It has its value from when the block starts, also where older ones were read."""
    assert choose([LOADED, *after], "x, y, z") == (chosen, kept)


def test_a_variable_whose_first_value_is_gone_is_used_as_it_is():
    assert choose(["n = n + 2", "m = n", "n = n + 2"], "m, n") == ([], ["m", "n"])


TRAINS = "for x in data:\n    loss = model(x)\n    loss.backward()\n    opt.step()"


@pytest.mark.parametrize(
    ("trains", "seconds", "block", "chosen", "kept", "skipped"),
    [
        (TRAINS, 0.1, "model, opt", ["model = M()", "opt = O(model)", TRAINS], [], []),
        (TRAINS, 0.6, "model, opt", ["model = M()", "opt = O(model)"], [], [TRAINS]),
        (
            TRAINS,
            0.6,
            "loss, opt",
            ["model = M()", "opt = O(model)"],
            ["loss"],
            [TRAINS],
        ),
        ("fit(model)", 0.6, "model", ["model = M()"], [], ["fit(model)"]),
        ("y = fit(model)", 0.6, "y", ["model = M()", "y = fit(model)"], [], []),
        ("y = fit(model)", 5.1, "y", [], ["y"], []),
        ("model.load_state_dict(load(p))", 0, "model", ["model = M()"], [], []),
        ("a.append(load(p))", 0, "model, a", ["model = M()"], ["a"], []),
        ("torch.save(model, p)", 0, "model", ["model = M()"], [], []),
    ],
)
def test_of_what_trains_long_only_the_model_is_made_again(
    trains, seconds, block, chosen, kept, skipped
):
    texts = ["model = M()", "opt = O(model)", "a = []", trains, block]
    times = [0, 0, 0, seconds, 0]
    statements = [
        one._replace(cell=n)
        for n, pair in enumerate(zip(texts, times, strict=True))
        for one in read_statements(*pair)
    ]
    found = choose_statements(statements, 4, trained={"model", "opt"})
    assert [texts[one.cell] for one in found.statements][:-1] == chosen
    assert found.kept == kept
    assert [texts[one.cell] for one in found.skipped] == skipped


def test_a_star_import_binds_what_the_module_has():
    assert choose(["from math import *", "from cmath import *"], "hypot(3, 4)")[0] == [
        "from math import *"
    ]


@pytest.mark.parametrize("call", ["x = model.eval()", "x = m.load_state_dict(s)"])
def test_methods_with_like_names_run_again(call):
    assert choose([call], "x") == ([call], [])


def test_of_a_cell_that_took_long_only_what_it_defines_runs_again():
    text = "class C:\n    pass\nn = 3\nx = train(n)"
    statements = read_statements(text, 6.0)
    assert [one.is_repeatable for one in statements] == [True, True, False]


def test_a_cell_that_is_no_python_has_no_statements():
    assert read_statements("this is no code") == ()


def test_names_of_imported_modules_are_full():
    code = "import a.b\nfrom .c import d\nfrom e import f"
    found = list_imported(code, "pkg.sub")
    assert {"a", "a.b", "pkg.sub.c", "pkg.sub.c.d", "e", "e.f"} <= {*found}


@pytest.mark.parametrize("name", ["time", "sys", "math", "torch", "gone", "ast"])
def test_modules_that_are_not_the_users_are_left_out(name):
    assert [*find_modules(f"import {name}")] == []


OLD = "n = 1\ndef f():\n    return 3\nclass C:\n    def g(self):\n        return 4\n"


@pytest.mark.parametrize(
    ("new", "has_bytecode"),
    [
        (OLD.replace("1", "12345"), True),
        (OLD.replace("3", "5"), False),
        (OLD.replace("4", "5"), False),
        (f"# a line\n{OLD}", False),
        ("this is no python", False),
    ],
)
def test_a_module_that_was_changed_since_its_import_is_left_out(
    tmp_path, monkeypatch, new, has_bytecode
):
    path = tmp_path / "own_module.py"
    path.write_text(OLD)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    if has_bytecode:
        py_compile.compile(str(path))
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("own_module", None)
    module = importlib.import_module("own_module")
    assert [*find_modules("import own_module")] == [module]
    assert find_edited([str(path)]) == set()
    path.write_text(new)
    linecache.checkcache(str(path))
    assert find_edited([str(path)]) == {str(path)}
    assert [*find_modules("import own_module")] == []
