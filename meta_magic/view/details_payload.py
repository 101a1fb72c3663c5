"""What the details panel tells beyond the other views, as tables and columns."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from meta_magic.cost.storage_lives import read_deaths
from meta_magic.trace.modules import ModuleClass
from meta_magic.trace.signature import Argument, Signature, TensorArgument
from meta_magic.view.brief_settings import shorten_settings
from meta_magic.view.wire import Table, as_differences

if TYPE_CHECKING:
    from meta_magic.trace.program import Program
    from meta_magic.trace.trace import Trace

__all__ = ["details_payload", "name_inputs"]

DOCS: Final = "https://docs.pytorch.org/docs/stable/generated/"


def details_payload(trace: "Trace") -> dict[str, Any]:
    """Return settings, classes and storages of the modules, and what was freed when."""
    nodes = [node for root in trace.modules for node in root.walk()]
    settings: Table[tuple[str, ModuleClass | None]] = Table(write_settings)
    definitions: Table[ModuleClass | None] = Table(write_class)
    storages = [number for node in nodes for number in node.storages]
    return {
        "settings_of": [settings.of((n.settings, n.definition)) for n in nodes],
        "settings": settings.rows,
        "definition_of": [definitions.of(node.definition) for node in nodes],
        "definitions": definitions.rows,
        "storages": as_differences(storages),
        "deaths": write_deaths(trace.program),
    }


def write_settings(told: tuple[str, ModuleClass | None]) -> list[str]:
    """Return settings in full, and in short for tables and boxes."""
    text, definition = told
    return [text, shorten_settings(text, definition)]


def write_class(found: ModuleClass | None) -> dict[str, Any]:
    """Return where the class of a module stands."""
    if found is None:
        return {"path": "", "docs": "", "file": "", "line": 0}
    docs = f"{DOCS}{found.docs}.html" if found.docs else ""
    file = found.file or ""
    return {"path": found.path, "docs": docs, "file": file, "line": found.line or 0}


def write_deaths(program: "Program") -> dict[str, list[int]]:
    """Return which storages were freed, and how many operators ran before each."""
    n_ops, storage = read_deaths(program).T
    return {"n_ops": as_differences(n_ops), "storage": as_differences(storage)}


def name_inputs(signature: Signature) -> list[str]:
    """Return for each input the argument that it is, such as ``tensors[1]``."""
    found = dict(find_inputs(signature.arguments))
    return [found.get(index, "") for index in range(len(signature.inputs))]


def find_inputs(
    arguments: Iterable[tuple[str, Argument]],
) -> Iterator[tuple[int, str]]:
    """Yield which input stands where."""
    for name, value in arguments:
        if isinstance(value, TensorArgument):
            yield value.index, name
        elif isinstance(value, tuple):
            yield from find_inputs((f"{name}[{i}]", v) for i, v in enumerate(value))
