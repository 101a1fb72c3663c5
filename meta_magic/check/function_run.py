"""Import a module and call a function of it, under a recording."""

import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from operator import attrgetter
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import torch

from meta_magic.check.checked_block import CheckedBlock, close_doors
from meta_magic.check.judging import Judge
from meta_magic.check.subjects import Subject, read_subject
from meta_magic.check.verdicts import Part, Request
from meta_magic.errors import CheckError

__all__ = ["run_function"]


def run_function(request: Request) -> Iterator[Part]:
    """Call a function; yield the one part that it has.

    Raises:
        CheckError: There is no such function, or it cannot be called so.
    """
    subject = request.subject
    sys.path.insert(0, str(Path.cwd() if subject.path is None else subject.path.parent))
    sys.argv = [subject.name]
    variables: dict[str, Any] = {}
    block = CheckedBlock(request, find_file(subject), variables)
    refused = close_doors(request)

    def run() -> object:
        function = find_function(subject)
        arguments, keywords = find_arguments(request)
        check_call(function, arguments, keywords)
        variables.update(getattr(function, "__globals__", {}))
        variables["result"] = value = function(*arguments, **keywords)
        return value

    trace = block.run(run)
    yield Judge(request, refused).judge(trace, block.error)


def find_file(subject: Subject) -> str:
    """Return the file of a subject's module.

    Raises:
        CheckError: There is no such module.
    """
    if subject.path is not None:
        return str(subject.path)
    try:
        spec = find_spec(subject.module)
    except ModuleNotFoundError:  # of a package that it would be in
        spec = None
    if spec is None:
        raise CheckError(f"there is no module {subject.module!r}")
    return spec.origin or ""


def find_function(subject: Subject) -> Callable[..., object]:
    """Return a function, its module imported.

    Raises:
        CheckError: There is none.
    """
    path = subject.path
    module = resolve_name(f"{subject.module}:") if path is None else load_file(path)
    try:
        function: object = attrgetter(subject.function)(module)
    except AttributeError:
        raise CheckError(
            f"{module.__name__!r} has no function {subject.function!r}"
        ) from None
    if not callable(function):
        raise CheckError(f"{subject.name} is no function, but {type(function)}")
    return function


def load_file(path: Path) -> ModuleType:
    """Import the module of a file, as its neighbours would."""
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise CheckError(f"{path.name} is no file of Python's")
    module = sys.modules[path.stem] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_arguments(request: Request) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return what a function is called with.

    Raises:
        CheckError: The factory is none.
    """
    given: Any = read_tensors(json.loads(request.arguments))
    if request.factory:
        given = find_function(read_subject(request.factory))()
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict):  # noqa: PLR2004  both of them
        arguments, keywords = given
        return arguments, keywords
    if isinstance(given, Mapping):
        return (), given
    return (given if isinstance(given, (list, tuple)) else [given]), {}


def read_tensors(value: Any) -> Any:
    """Return JSON with a tensor for each ``{"shape": [2, 3], "dtype": "int64"}``.

    Raises:
        CheckError: There is no such dtype.
    """
    if isinstance(value, list):
        return [read_tensors(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "shape" not in value or not {*value} <= {"shape", "dtype"}:
        return {name: read_tensors(item) for name, item in value.items()}
    name = value.get("dtype", "float32")
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CheckError(f"torch has no dtype {name!r}")
    return torch.zeros(value["shape"], dtype=dtype)


def check_call(
    function: Callable[..., object],
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
) -> None:
    """Refuse arguments that a function does not take.

    Raises:
        CheckError: It takes others.
    """
    try:
        inspect.signature(function).bind(*arguments, **keywords)
    except TypeError as error:
        raise CheckError(
            f"the function cannot be called: {error}; give it arguments by --args or "
            "--factory"
        ) from None
    except ValueError:  # it does not say what it takes
        return
