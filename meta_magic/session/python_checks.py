"""What Python's own checks, and those of torch's constructors, found, in sentences."""

import ast
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn, optim

from meta_magic.session.called_functions import Called
from meta_magic.session.module_names import read_attributes, walk_held
from meta_magic.session.operand_names import Site, read_expression, walk_parts
from meta_magic.torch_private.module_internals import parameters_of, walk_modules

__all__ = ["list_remarks"]

SIZES = ("shape", "size")


def list_remarks(
    error: BaseException, called: Called, sites: Sequence[Site]
) -> tuple[str, ...]:
    """Return what there is to say of an error that no operator raised."""
    found: list[str] = []
    for site in sites[-1:]:
        if called.module is not None and isinstance(error, TypeError):
            found += tell_signature(called, site)
        if isinstance(called.function, type):
            found += tell_empty(called.function, site)
        if called.function is called.module is None:
            found += tell_unpacked(site)
    return tuple(found)


def tell_signature(called: Called, site: Site) -> Iterator[str]:
    """Yield what a user's module takes, where its call does not fit."""
    kind: Any = type(called.module)
    forward = inspect.unwrap(kind.forward)
    code = getattr(forward, "__code__", None)
    if code is None or called.function is not None:
        return
    signature = inspect.signature(forward)
    try:
        signature.bind(called.module, *called.args, **called.kwargs)
    except TypeError:
        names = ", ".join(signature.parameters)
        is_near = code.co_filename == site.position.file
        where = f" (line {code.co_firstlineno})" if is_near else ""
        yield f"what is asked for is {kind.__name__}.forward({names}){where}"


def tell_unpacked(site: Site) -> Iterator[str]:
    """Yield how many dimensions a tensor has whose sizes are unpacked."""
    node = site.node
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
        return
    sizes = node.value.func if isinstance(node.value, ast.Call) else node.value
    if isinstance(sizes, ast.Attribute) and sizes.attr in SIZES:
        tensor = read_expression(sizes.value, site.frame)
        if isinstance(tensor, Tensor):
            name, n_names = ast.unparse(sizes.value), len(node.targets[0].elts)
            yield f"{name} has {tensor.ndim} dimensions, and {n_names} are unpacked"


def tell_empty(kind: type, site: Site) -> Iterator[str]:
    """Yield which module has no parameters for an optimizer, and where some may be."""
    if not issubclass(kind, optim.Optimizer):
        return
    for part in walk_parts(site):
        module = read_expression(part, site.frame)
        if isinstance(module, nn.Module) and not any(
            parameters_of(m) for _, m in walk_modules(module)
        ):
            name = ast.unparse(part)
            yield f"{name} has no parameters"
            for path, kept in walk_hidden(module):
                yield (
                    f"{name}{path} is a {kept}: what it holds is no part of the module,"
                    " as in nn.ModuleList or nn.ModuleDict it is"
                )


def walk_hidden(root: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the lists and dictionaries in which modules hold others, and their type."""
    for fqn, module in walk_modules(root):
        for name, value in read_attributes(module).items():
            is_kept = not name.startswith("_") and type(value) in (list, tuple, dict)
            if is_kept and any(holds_parameters(held) for _, held in walk_held(value)):
                path = f"{fqn}.{name}" if fqn else name
                yield f".{path}", type(value).__name__


def holds_parameters(value: object) -> bool:
    """Whether a value is a parameter, or a module."""
    return isinstance(value, (nn.Parameter, nn.Module))
