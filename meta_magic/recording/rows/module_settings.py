"""Read the settings of modules, and where their classes are defined.

``extra_repr`` is the user's code: it may raise, return a long text, or take long. Then
the report shows no settings.
"""

import inspect
import time
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from operator import itemgetter
from types import FunctionType, NoneType, SimpleNamespace
from typing import Any, Final

import torch
from torch import nn

from meta_magic.torch_private.module_internals import pick_own
from meta_magic.trace.modules import ModuleClass

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
        self._records_by_class[kind] = [
            name
            for name, value in module.__dict__.items()
            if type(value) not in NO_RECORDS and is_record(value)
        ]
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
                shown += [
                    pair for pair in read_record(record) if type(pair[1]) in PLAIN
                ]
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
        return [
            (field.name, read(record, field.name)) for field in fields(type(record))
        ]
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


def find_static(kind: type, name: str) -> Any:
    """Return an attribute of a class or of its first base that has it."""
    for base in kind.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    raise AttributeError(name)


def describe_class(kind: type[nn.Module]) -> ModuleClass:
    """Return the file and line of a class, and its name in torch's documentation."""
    # It may be of any kind: TorchScript has one that raises when asked.
    forward = find_static(kind, "forward")
    has_code = type(forward) is FunctionType and forward is not nn.Module.forward
    code = getattr(inspect.unwrap(forward), "__code__", None) if has_code else None
    # Old names and bases, which torch does not describe, have no page.
    is_documented = kind is vars(nn).get(kind.__name__) and "__doc__" in vars(kind)
    return ModuleClass(
        name=kind.__qualname__.rpartition("<locals>.")[2],
        path=f"{kind.__module__}.{kind.__qualname__}",
        docs=f"torch.nn.{kind.__name__}" if is_documented and kind.__doc__ else None,
        file=None if code is None else code.co_filename,
        line=None if code is None else code.co_firstlineno,
        has_extra_repr=find_static(kind, "extra_repr") is not nn.Module.extra_repr,
        defaults=tuple(read_defaults(kind)),
    )
