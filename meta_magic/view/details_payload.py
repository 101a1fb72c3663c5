"""The payload of the details panel and of the tables: settings, classes, columns.

``kernel_size=(3, 3)`` of a module, the class that it has and its documentation, when
each storage was freed, and values of table columns that the browser cannot compute.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final

from meta_magic.cost.storage_lives import read_deaths
from meta_magic.trace import module_columns, op_columns
from meta_magic.trace.module_columns import Siblings
from meta_magic.trace.modules import ModuleClass
from meta_magic.trace.notes import name_cell
from meta_magic.trace.op_columns import Column, OpColumn, Wire
from meta_magic.trace.program import find_firsts
from meta_magic.trace.signature import Argument, Signature, TensorArgument
from meta_magic.trace.units import NamedSize, format_shape
from meta_magic.view.pictures import find_previous_windows
from meta_magic.view.wire import Table, as_differences

if TYPE_CHECKING:
    from meta_magic.trace.calls import OpCall
    from meta_magic.trace.module_columns import ModuleColumn
    from meta_magic.trace.modules import ModuleNode
    from meta_magic.trace.trace import Trace

DOCS: Final = "https://docs.pytorch.org/docs/stable/generated/"


def details_payload(trace: "Trace") -> dict[str, Any]:
    """Return settings, classes and storages of modules, and when storages died."""
    nodes = [node for root in trace.modules for node in root.walk()]
    settings: Table[tuple[str, ModuleClass | None]] = Table(write_settings)
    definitions: Table[ModuleClass | None] = Table(write_class)
    storages = [number for node in nodes for number in node.storages]
    n_ops, died = read_deaths(trace.program).T
    return {
        "settings_of": [settings.of((n.settings, n.definition)) for n in nodes],
        "settings": settings.rows,
        "definition_of": [definitions.of(node.definition) for node in nodes],
        "definitions": definitions.rows,
        "storages": as_differences(storages),
        "windows": find_previous_windows(trace),
        "deaths": {"n_ops": as_differences(n_ops), "storage": as_differences(died)},
    }


def write_settings(settings: tuple[str, ModuleClass | None]) -> list[str]:
    """Return settings in full, then in short: the sizes, and the others."""
    text, definition = settings
    return [text, *shorten_settings(text, definition)]


def write_class(found: ModuleClass | None) -> dict[str, Any]:
    """Return the class of a module, its documentation and its source."""
    if found is None:
        return {"path": "", "docs": "", "file": "", "line": 0}
    docs = f"{DOCS}{found.docs}.html" if found.docs else ""
    file = name_cell(found.file or "") or found.file or ""
    return {"path": found.path, "docs": docs, "file": file, "line": found.line or 0}


def name_inputs(signature: Signature) -> list[str]:
    """Return the argument name of each input, such as ``tensors[1]``."""
    found = dict(find_inputs(signature.arguments))
    return [found.get(index, "") for index in range(len(signature.inputs))]


def find_inputs(arguments: Iterable[tuple[str, Argument]]) -> Iterator[tuple[int, str]]:
    """Yield the number and the argument name of each input."""
    for name, value in arguments:
        if isinstance(value, TensorArgument):
            yield value.index, name
        elif isinstance(value, tuple):
            yield from find_inputs((f"{name}[{i}]", v) for i, v in enumerate(value))


NOTHING: Final = frozenset({"False", "None", "0", "0.0", "''"})
FRACTION: Final = re.compile(r"-?\d*\.?\d*(e-?\d+)?")
SIZES: Final = re.compile(r"\d+|\((\d+(, ?)?)+\)")
TAKEN: Final = re.compile("in_features|in_channels|in_dim|input_size|nx")
GIVEN: Final = re.compile("out_features|out_channels|out_dim|hidden_size|nf")
"""Names of the size that a module takes, and of the one that it gives."""

ARROW: Final = " \N{RIGHTWARDS ARROW} "
TIMES: Final = "\N{MULTIPLICATION SIGN}"

PAIRS: Final = (
    (re.compile(r"torch\.nn\.modules\.(conv|rnn)\."), ARROW),
    (re.compile(r"torch\.nn\.modules\.sparse\."), f" {TIMES} "),
)
"""Classes whose first two settings have no names, and what is written between them."""

OF_WINDOWS: Final = ("stride", "padding", "dilation", "groups")


def shorten_settings(text: str, definition: ModuleClass | None) -> tuple[str, str]:
    """Return sizes, such as ``768 -> 2304``, and what is not the class's default.

    Counts and flags come first, then fractions, and what shapes show. A class without
    ``extra_repr`` has those of its attributes that are not false, zero or None.
    """
    if definition is None:
        return "", " ".join(text.split())
    defaults = dict(reversed(definition.defaults))
    omitted = frozenset[str]() if definition.has_extra_repr else NOTHING
    early: list[tuple[str, str]] = []
    late: list[tuple[str, str]] = []
    for part in split_settings(text):
        name, _, value = part.rpartition("=")
        if name and (value in omitted or is_default(value, defaults.get(name))):
            continue
        is_fraction = name and not value.isdecimal() and FRACTION.fullmatch(value)
        is_late = is_fraction or name == "batch_first"
        (late if is_late else early).append((name, value) if name else ("", part))
    sizes = take_sizes(early, definition)
    others = [write_setting(*part, definition.name) for part in early + late]
    return sizes, ", ".join(others)


def take_sizes(parts: list[tuple[str, str]], definition: ModuleClass) -> str:
    """Remove the sizes of a module from its settings, and return them as one text."""
    ends = [
        next((p for p in parts if named.fullmatch(p[0]) and p[1].isdecimal()), None)
        for named in (TAKEN, GIVEN)
    ]
    if None not in ends:
        parts[:] = [part for part in parts if part not in ends]
        return ARROW.join(part[1] for part in ends if part)
    sizes = [value for name, value in parts if not name and SIZES.fullmatch(value)]
    parts[:] = [part for part in parts if part[0] or part[1] not in sizes]
    between = (sign for path, sign in PAIRS if path.match(definition.path))
    return next(between, ", ").join(map(write_size, sizes))


def write_size(value: str) -> str:
    """Return ``(7, 7)`` with a sign between its numbers."""
    return TIMES.join(re.findall(r"\d+", value))


def write_setting(name: str, value: str, class_name: str) -> str:
    """Return a setting as tables and boxes have it; of a window as figures have it."""
    if name == "kernel_size" and SIZES.fullmatch(value):
        n_dims = int(class_name[-2]) if re.search(r"[23]d$", class_name) else 1
        size = write_size(", ".join([value] * n_dims) if value.isdecimal() else value)
        return size if TIMES in size else f"kernel {size}"
    if name in OF_WINDOWS and SIZES.fullmatch(value):
        sizes = re.findall(r"\d+", value)
        return f"{name} {TIMES.join(sizes if len(set(sizes)) > 1 else sizes[:1])}"
    return name if value == "True" else f"{name}={value}" if name else value


def is_default(value: str, default: str | None) -> bool:
    """Whether a value is the default; ``(3, 3)`` equals a default of 3."""
    if default is None:
        return False
    sizes = {size.strip() for size in value.strip("()").split(",") if size.strip()}
    return value == default or sizes == {default}


def split_settings(text: str) -> Iterator[str]:
    """Split settings at commas outside of brackets."""
    part, depth = "", 0
    for char in " ".join(text.split()):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and not depth:
            yield part
            part = ""
        else:
            part = (part + char).lstrip()
    if part:
        yield part


def columns_payload(trace: "Trace") -> dict[str, list[dict[str, Any]]]:
    """Return the columns of both tables, in their order."""
    samples = find_samples(trace)
    calls: dict[Wire, Sequence[OpCall | None]]
    calls = {"call": trace.ops, "signature": samples}
    runs = [Siblings(nodes=[root], calls=trace.module_calls) for root in trace.modules]
    nodes = [node for root in trace.modules for node in root.walk()]
    written = {
        "ops": [
            write_op_column(c, calls) | hide(c, map(c.reader, filter(None, samples)))
            for c in op_columns.OP_COLUMNS
        ],
        "modules": [
            write_module_column(c, nodes) | hide(c, map(c.value_of, runs))
            for c in module_columns.MODULE_COLUMNS
        ],
    }
    widest = max(map(len, list_named(trace)), default=0)
    for column in (*written["ops"], *written["modules"]):
        if column["name"] in SHAPES:
            needed = min(widest * LETTER, MAX_WIDTH)
            column["width"] = max(column["width"], needed)
    return written


SHAPES: Final = frozenset({"output", "outputs"})
"""Columns that show one shape, by name where the trace has names."""

LETTER: Final = 7
"""Pixels of a letter."""

MAX_WIDTH: Final = 280
"""Of a column of shapes by name, in pixels."""


def list_named(trace: "Trace") -> Iterator[str]:
    """Yield the shapes that operators return, as far as their sizes have names."""
    for signature in trace.program.signatures:
        for one in signature.outputs:
            if any(isinstance(size, NamedSize) for size in one.shape):
                yield format_shape(one.shape)


def find_samples(trace: "Trace") -> list["OpCall | None"]:
    """Return the first call of each signature; None if it has none."""
    program = trace.program.with_raised
    firsts = find_firsts(trace.columns.signature, len(program.signatures))
    return [None if index < 0 else trace.ops[index] for index in firsts.tolist()]


def write_op_column(
    column: OpColumn, calls: Mapping[Wire, Sequence["OpCall | None"]]
) -> dict[str, Any]:
    """Return a column of the operators, with a value for each call or signature."""
    written = write_column(column)
    if column.wire in calls:
        read = column.reader
        values = [None if c is None else read(c) for c in calls[column.wire]]
        written |= {"wire": column.wire, "values": values}
    return written


def write_module_column(
    column: "ModuleColumn", nodes: Sequence["ModuleNode"]
) -> dict[str, Any]:
    """Return a column of the modules, with a value for each."""
    written = write_column(column)
    if column.read is not None:
        written |= {"add_up": column.add_up, "values": [*map(column.read, nodes)]}
    return written


def hide(column: Column, values: Iterable[object]) -> dict[str, bool]:
    """Return ``is_hidden`` for an optional column without any value."""
    return {"is_hidden": True} if column.is_optional and not any(values) else {}


def write_column(column: Column) -> dict[str, Any]:
    """Return the fields of a column that are not at their defaults, and its width."""
    every = asdict(column)
    written = {
        field.name: every[field.name]
        for field in fields(Column)
        if field.name == "width"
        or (every[field.name] != field.default and field.name != "is_optional")
    }
    return written | ({"align": "right"} if column.is_number else {})
