"""Describe the module trees of a recording: live modules to records.

The modules view of a report is made of them. Read :func:`find_trees` first.
``extra_repr`` is the user's code: it may raise, return a long text, or take long. Then
the report shows no settings (:class:`ModuleSettings`).
"""

import inspect
import time
import weakref
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from operator import itemgetter
from types import FunctionType, NoneType, SimpleNamespace
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import nn

from meta_magic.recording.identities.origins import read_version
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.rows.tree_tensors import HeldTensors, own_tensors
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.module_internals import (
    children_of,
    is_made,
    moves_itself,
    pick_own,
    walk_modules,
)
from meta_magic.torch_private.tensor_internals import is_wrapper
from meta_magic.trace.modules import ModuleClass, ModuleNode

MAX_TEXT: Final = 300
MAX_NAMES: Final = 12
PLAIN: Final = frozenset({bool, int, float, str})

NO_RECORDS: Final = PLAIN | {dict, OrderedDict, set, list, tuple, NoneType}
"""Frequent types of attributes: to ask whether one is a dataclass is slow."""

NAMESPACES: Final = frozenset({Namespace, SimpleNamespace})
"""Classes, besides dataclasses, that hold the configuration of a model."""

PATIENCE: Final = 0.05
"""Seconds of processor time that ``extra_repr`` may take for the first module of a
class: if it takes more, no other module of the class is asked. Torch's take 5 us."""


class ModuleSettings:
    """Asks modules for their settings, if it may, and describes their classes."""

    def __init__(self, *, may_ask: bool) -> None:
        self._may_ask = may_ask
        self._known: dict[type, tuple[ModuleClass, bool]] = {}
        self._records_by_class: dict[type, list[str]] = {}
        self._seen: set[int] = set()

    def read(self, module: nn.Module) -> tuple[str, ModuleClass]:
        """Return the settings of a module, and its class.

        Without an ``extra_repr`` of its own the settings are its plain attributes, and
        those of a record that it holds, such as a configuration, if no earlier module
        holds the same record.
        """
        known = self._known.get(type(module))
        definition, is_asked = known or self._add_class(module)
        try:
            if not is_asked:
                return self._describe_attributes(module), definition
            text: object = module.extra_repr()
        except Exception as error:  # noqa: BLE001  whatever the user's code raises
            what = "extra_repr" if is_asked else "an attribute"
            return f"{what} raised {type(error).__name__}", definition
        if type(text) is not str:
            return "", definition
        return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…", definition

    def _add_class(self, module: nn.Module) -> tuple[ModuleClass, bool]:
        """Describe a class, and return whether its modules are asked."""
        kind = type(module)
        definition = describe_class(kind)
        held = module.__dict__.items()
        records = [n for n, v in held if type(v) not in NO_RECORDS and is_record(v)]
        self._records_by_class[kind] = records
        is_asked = self._may_ask and definition.has_extra_repr
        self._known[kind] = definition, is_asked
        if is_asked:
            started, drawn = time.thread_time(), torch.get_rng_state()
            self.read(module)
            is_asked = time.thread_time() - started <= PATIENCE
            if not torch.equal(drawn, torch.get_rng_state()):  # it drew: do not ask
                torch.set_rng_state(drawn)
                is_asked = False
        self._known[kind] = definition, is_asked
        return definition, is_asked

    def _describe_attributes(self, module: nn.Module) -> str:
        """Return plain attributes of a module, and of the records in it that are new.

        Counts and sizes come first, small ones before large ones, which shapes show as
        well; then other values that are true, then those that are false or None.
        """
        held = module.__dict__
        names = pick_own(tuple(held))
        shown = [(name, held[name]) for name in names if type(held[name]) in PLAIN]
        for name in self._records_by_class[type(module)]:
            record = held.get(name)
            if id(record) not in self._seen and is_record(record):
                self._seen.add(id(record))
                shown += [row for row in read_record(record) if type(row[1]) in PLAIN]
        sizes: list[tuple[str, int]] = []
        others: list[str] = []
        nothing: list[str] = []
        for name, value in shown:
            if name == "training" or name[:1] == "_":
                continue
            if type(value) is int and value > 1:
                sizes.append((name, value))
            else:
                (others if value else nothing).append(f"{name}={value!r}")
        sizes.sort(key=itemgetter(1))
        counts = [f"{name}={value}" for name, value in sizes]
        texts = dict.fromkeys(counts + others + nothing)
        return ", ".join([*texts][:MAX_NAMES])[:MAX_TEXT]


def is_record(value: object) -> bool:
    """Whether a value can hold settings: a namespace or a dataclass."""
    return type(value) in NAMESPACES or is_dataclass(type(value))


def read_record(record: Any) -> list[tuple[str, object]]:
    """Return the fields of a namespace or a dataclass, without running its own code."""
    read = object.__getattribute__
    with suppress(AttributeError):
        return [*read(record, "__dict__").items()]
    with suppress(AttributeError):  # slots, of which one may not be set
        return [(slot.name, read(record, slot.name)) for slot in fields(type(record))]
    return []


def read_defaults(kind: type[nn.Module]) -> Iterator[tuple[str, str]]:
    """Yield the default values of the plain arguments of a module's constructor."""
    for base in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        made_by: Any = vars(base).get("__init__")
        if type(made_by) is not FunctionType:
            continue
        code, given = made_by.__code__, made_by.__defaults__ or ()
        names = code.co_varnames[code.co_argcount - len(given) : code.co_argcount]
        pairs = zip(names, given, strict=True)
        for name, value in (*pairs, *(made_by.__kwdefaults__ or {}).items()):
            if type(value) in PLAIN:
                yield name, repr(value)


def describe_class(kind: type[nn.Module]) -> ModuleClass:
    """Return the file and line of a class, and its name in torch's documentation."""
    # It may be of any kind: TorchScript has one that raises when asked.
    forward = inspect.getattr_static(kind, "forward")
    has_code = type(forward) is FunctionType and forward is not nn.Module.forward
    code = getattr(inspect.unwrap(forward), "__code__", None) if has_code else None
    extra_repr = inspect.getattr_static(kind, "extra_repr")
    # Old names and bases, which torch does not describe, have no page.
    is_documented = kind is vars(nn).get(kind.__name__) and "__doc__" in vars(kind)
    return ModuleClass(
        name=kind.__qualname__.rpartition("<locals>.")[2],
        path=f"{kind.__module__}.{kind.__qualname__}",
        docs=f"torch.nn.{kind.__name__}" if is_documented and kind.__doc__ else None,
        file=None if code is None else code.co_filename,
        line=None if code is None else code.co_firstlineno,
        has_extra_repr=extra_repr is not nn.Module.extra_repr,
        defaults=tuple(read_defaults(kind)),
        parameters=code.co_varnames[1 : code.co_argcount] if code else (),
    )


class ModuleNumbers:
    """A number for each module, and weak references to those that are live."""

    def __init__(self) -> None:
        self.class_names: list[str] = []
        self._known_by_id: dict[int, tuple[int, weakref.ref[nn.Module]]] = {}

    def of(self, module: nn.Module) -> int:
        """Return the number of ``module``, from 0 in order of first sight."""
        known = self._known_by_id.get(id(module))
        if known is not None:
            if known[1]() is module:
                return known[0]
            del self._known_by_id[id(module)]  # the new one is the last in order
        number = len(self.class_names)
        self.class_names.append(type(module).__qualname__)
        # No callback: one written in Python would swallow an interrupt.
        self._known_by_id[id(module)] = (number, weakref.ref(module))
        return number

    def live(self) -> list[tuple[int, nn.Module]]:
        """Return number and module of all live modules, in order."""
        known = list(self._known_by_id.values())
        return [(n, module) for n, ref in known if (module := ref()) is not None]

    def close(self) -> None:
        """Drop all modules."""
        self._known_by_id.clear()


NO_CALLS: Final = (None, 0)


def add_calls(
    root: ModuleNode, calls_by_fqn: Mapping[str, tuple[int | None, int]]
) -> ModuleNode:
    """Return a tree with the calls of all its modules."""
    nodes: list[ModuleNode] = []
    parents: list[int] = []
    stack = [(root, 0)]
    while stack:
        node, parent = stack.pop()
        stack += [(child, len(nodes)) for child in reversed(node.children)]
        nodes.append(node)
        parents.append(parent)

    def make(index: int, children: tuple[ModuleNode, ...]) -> ModuleNode:
        first, n = calls_by_fqn.get(nodes[index].fqn, NO_CALLS)
        node = nodes[index]
        return replace(node, first_call=first, n_calls=n, children=children)

    return build_tree(parents, make)


def build_tree(
    parents: Sequence[int], make: Callable[[int, tuple[ModuleNode, ...]], ModuleNode]
) -> ModuleNode:
    """Return the root of a tree, however deep it is; parents come first.

    ``make`` returns the node of an index, given its children.
    """
    below: list[list[ModuleNode]] = [[] for _ in parents]
    for index in reversed(range(len(parents))):
        node = make(index, tuple(reversed(below[index])))
        below[parents[index]].append(node)
    return node


CallsByModule: TypeAlias = Mapping[int, tuple[int | None, int]]
"""Index of the first call and number of calls, by module number."""


@dataclass(slots=True, kw_only=True)
class Tree:
    """A described module tree, and what is known of its modules by number.

    Attributes:
        attributes: (class name, attribute, storage) of the tensors that are neither
            parameter nor buffer.
        versions: By storage and ``id``, how often tensors were written in place.
    """

    node: ModuleNode
    fqn_by_module: dict[int, str]
    owner_by_storage: dict[int, int]
    attributes: list[tuple[str, str, int]]
    versions: dict[tuple[int, int], int]

    @property
    def number(self) -> int:
        """Number of the root module: it is described first."""
        return next(iter(self.fqn_by_module))

    def with_final_calls(self, calls: CallsByModule) -> "Tree":
        """Return the tree of a module that is gone, with all of its calls."""
        fqns = self.fqn_by_module.items()
        calls_by_fqn = {fqn: calls[number] for number, fqn in fqns if number in calls}
        node = add_calls(self.node, calls_by_fqn)
        return replace(self, node=node, versions={})


class TreeColumns(NamedTuple):
    """The modules of a tree, once for each path, parents first."""

    modules: Sequence[nn.Module]
    names: Sequence[str]
    fqns: Sequence[str]
    parents: Sequence[int]
    shared: dict[int, str]


def walk_tree(root: nn.Module) -> TreeColumns:
    """Return the modules of a tree; children are below the first path of a module."""
    rows: list[tuple[nn.Module, str, str, int]] = []
    first_by_id: dict[int, str] = {}
    shared: dict[int, str] = {}
    stack: list[tuple[Iterator[tuple[str, nn.Module | None]], str, int]]
    stack = [(iter([("", root)]), "", 0)]
    while stack:
        held, prefix, parent = stack[-1]
        for name, module in held:
            if module is None:
                continue
            fqn, index = prefix + name, len(rows)
            rows.append((module, name, fqn, parent))
            first = first_by_id.setdefault(id(module), fqn)
            children = children_of(module)
            if first != fqn:
                shared[index] = first
            elif children:
                items = iter([*children.items()])
                stack.append((items, f"{fqn}." if fqn else "", index))
                break
        else:
            stack.pop()
    modules, names, fqns, parents = zip(*rows, strict=True)
    return TreeColumns(modules, names, fqns, parents, shared)


def describe_columns(
    registry: TensorRegistry,
    numbers: ModuleNumbers,
    columns: TreeColumns,
    name: str = "",
    calls: CallsByModule | None = None,
) -> Tree:
    """Describe the modules of a tree; without ``calls`` none of their code may run."""
    registry.note_deaths()
    columns = columns._replace(names=(name, *columns.names[1:]))
    found = [*map(numbers.of, columns.modules)]
    fqn_by_module = dict(zip(found, columns.fqns, strict=True))
    for index, fqn in columns.shared.items():
        fqn_by_module[found[index]] = fqn
    at = [pair for pair in enumerate(columns.modules) if pair[0] not in columns.shared]
    with DisableTorchFunction():
        read = ModuleSettings(may_ask=calls is not None).read
        settings = [*map(read, columns.modules)]
        held = HeldTensors(registry, at)
        called = [(calls or {}).get(number, NO_CALLS) for number in found]
        node_fields = make_columns(columns, settings, called, held)
        rows = [*zip(*node_fields.values(), strict=True)]

        def make_node(index: int, children: tuple[ModuleNode, ...]) -> ModuleNode:
            own = zip(node_fields, rows[index], strict=True)
            return ModuleNode(**dict(own), children=children)

        return Tree(
            node=build_tree(columns.parents, make_node),
            fqn_by_module=fqn_by_module,
            owner_by_storage=held.find_owners(found),
            attributes=[
                (node_fields["class_name"][i], n, s)
                for i, n, s in held.list_attributes()
                if not moves_itself(columns.modules[i])
            ],
            versions=held.read_versions(),
        )


def make_columns(
    columns: TreeColumns,
    settings: list[tuple[str, ModuleClass]],
    called: list[tuple[int | None, int]],
    held: HeldTensors,
) -> dict[str, Sequence[Any]]:
    """Return the fields of the nodes of a tree, but for their children."""
    shared: list[str | None] = [None] * len(called)
    for index, fqn in columns.shared.items():
        settings[index] = "", settings[index][1]
        called[index], shared[index] = NO_CALLS, fqn
    texts, definitions = zip(*settings, strict=True)
    first_calls, n_calls = zip(*called, strict=True)
    tensors, storages = zip(*held.describe(columns.fqns), strict=True)
    return {
        "name": columns.names,
        "fqn": columns.fqns,
        "class_name": [definition.name for definition in definitions],
        "tensors": tensors,
        "n_calls": n_calls,
        "first_call": first_calls,
        "shared_with": shared,
        "settings": texts,
        "storages": storages,
        "definition": definitions,
    }


def read_versions(
    registry: TensorRegistry, root: nn.Module
) -> dict[tuple[int, int], int]:
    """Return how often tensors were written, by storage (-1 for none) and ``id``."""
    versions: dict[tuple[int, int], int] = {}
    with DisableTorchFunction():
        for _, module in walk_modules(root):
            for _, _, tensor in own_tensors(module):
                storage = registry.find_storage(tensor)
                number = -1 if storage is None or is_wrapper(tensor) else storage
                versions[number, id(tensor)] = read_version(tensor)
    return versions


def find_trees(numbers: ModuleNumbers) -> list[TreeColumns]:
    """Return each tree built or called, in order of first sight."""
    live = [module for _, module in numbers.live()]
    if live and is_made(live[0]):  # usually all belong to the tree of the first
        columns = walk_tree(live[0])
        known = set(map(id, columns.modules))
        if known.issuperset(map(id, live)) and "" not in columns.shared.values():
            return [columns]
    return [*map(walk_tree, find_roots(live))]


def find_roots(live: list[nn.Module]) -> list[nn.Module]:
    """Return the live modules that no other one holds, in order of first sight."""
    fresh = live
    held: set[int] = set()
    expanded = set(map(id, live))
    while fresh:
        below = list_children(fresh)
        below_ids = set(map(id, below))
        held |= below_ids
        below_ids -= expanded
        fresh = [module for module in below if id(module) in below_ids]
        expanded |= below_ids
    return [m for m in live if id(m) not in held and is_made(m)]


def find_root(module: nn.Module, live: list[nn.Module]) -> nn.Module:
    """Return the root of the tree of a module: one that no other live one holds."""
    held = set(map(id, list_children(live)))
    seen = set[int]()
    while id(module) in held - seen:  # a module may hold itself
        seen.add(id(module))
        holders = (m for m in live if any(c is module for c in list_children([m])))
        module = next(holders)
    return module


def list_children(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """Return the children of some modules; none before ``Module.__init__``."""
    try:
        tables = [*map(children_of, modules)]
    except AttributeError:
        tables = [*map(children_of, filter(is_made, modules))]
    filled = [table.values() for table in tables if table]
    return [module for modules in filled for module in modules if module is not None]
