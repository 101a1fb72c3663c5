"""Private names of torch stand in one room alone, in whatever way they are named."""

import ast

import pytest

from tests.house import MODULES

OURS = frozenset(
    {
        "_getframe",  # of sys
        "_exit",  # of os
        "_showwarnmsg",  # of warnings
        *("_asdict", "_replace"),  # of named tuples
        "_render_traceback_",  # IPython's protocol for exceptions
        *("_ipython_display_", "_repr_html_"),  # its protocols for what shows itself
        "_unsafe_view",  # an operator that is called as a view
        "_filename_map",  # of IPython's compiler
        "_ipython_cache",  # of it, too, in IPython 7
        "_meta",  # the newest trace, in the user's namespace
        "_meta_magic_installed",  # on the shell
        "_reset_parameters",  # methods of the user's modules
        "_init_weights",
        "_is_hf_initialized",
        "_flatten",  # of safetensors
        "_flatten_as_ptr",
    }
)
"""Names with an underscore that are no private ones of torch."""


def is_private(name):
    """Whether a name begins with one underscore, and is more than that."""
    return name[:1] == "_" and name[:2] != "__" and name[1:].isidentifier()


def list_names(tree):
    """Return the names of all attributes in code, and its strings."""
    nodes = list(ast.walk(tree))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return attributes | {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def parse(module):
    """Return the code of a module."""
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


OF_TORCH = frozenset(
    name
    for module in MODULES
    if module.startswith("torch_private.")
    if module not in {"torch_private.snapshot", "torch_private.replacing"}
    for name in list_names(parse(module))
    if is_private(name)
)
"""Names that are known to be torch's, whatever else has them."""


def find_own(tree):
    """Return the private names that code itself gives to something."""
    functions = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    stored = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if ast.unparse(node.value) in {"self", "cls"}
    }
    return (functions | stored) - OF_TORCH


def find_private(tree):
    """Yield the private names that code takes from what is not its own."""
    own = find_own(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            base = getattr(node, "module", None) or ""
            for alias in node.names:
                parts = f"{base}.{alias.name}".split(".")
                yield from filter(is_private, parts if "torch" in parts else ())
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            if node.attr not in own and ast.unparse(node.value) not in {"self", "cls"}:
                yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_dotted = node.value.startswith("torch.") and " " not in node.value
            parts = node.value.split(".") if is_dotted else [node.value]
            yield from (part for part in parts if is_private(part) and part not in own)


def find_foreign(tree):
    """Return the private names in code that are neither its own nor known."""
    return set(find_private(tree)) - OURS


def test_private_names_of_torch_stand_in_one_room_alone():
    others = [m for m in MODULES if m and not m.startswith("torch_private")]
    found = {module: find_foreign(parse(module)) for module in others}
    assert {module: names for module, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch._C.f()",
        "import torch._C as c",
        "import torch._meta_registrations",
        "from torch._C import f",
        "from torch import _meta_registrations",
        "def f(tensor): return tensor.untyped_storage()._cdata",
        "def f(module): return getattr(module, '_parameters', {})",
        "def f(module): return vars(module)['_parameters']",
        "g = attrgetter('_version')",
        "m = import_module('torch._C')",
        "class A:\n    def f(self, library): library._destroy()",
        "class A:\n    def f(self, x): self._version = x._version",
    ],
)
def test_a_private_name_is_seen_wherever_it_stands(code):
    assert find_foreign(ast.parse(code))


def test_a_private_name_of_ones_own_is_none_of_torch():
    code = "class A:\n    def f(self, other):\n        self._x = other._x + self._f()\n"
    assert find_foreign(ast.parse(code + "    def _f(self): return 1\n")) == set()
