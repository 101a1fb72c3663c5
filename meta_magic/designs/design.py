"""What a block builds and costs, as a small record that is compared and pickled.

Two traces hold thousands of calls; what people compare is the module tree, the numbers
that the code names, and a few totals. Read :func:`read_design` first.
"""

import ast
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

from meta_magic.errors import TrialError
from meta_magic.trace.modules import ModuleNode, count_bytes, count_elements
from meta_magic.trace.trace import Trace
from meta_magic.trials.blocks import parse_block
from meta_magic.trials.fields import list_named

Tensors: TypeAlias = Mapping[str, tuple[tuple[int, ...], str, bool]]
"""By name: shape, dtype, and whether the tensor is tied to an earlier one."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A module of a design, with those below it.

    Attributes:
        name: Name within its parent; for a root, its variable.
        path: Name with that of the root, as ``model.h.0``.
        class_name: Its class.
        home: The Python module that has the class.
        settings: Its ``extra_repr`` by name: ``{"in_features": "3"}``; what has no
            name has its position.
        tensors: Its own parameters and buffers.
        output: Shape that its first call returned; None if it was not called.
        n_parameters: Numbers in all parameters below it, tied ones counted once.
        children: The modules in it.
    """

    name: str
    path: str
    class_name: str
    home: str
    settings: Mapping[str, str]
    tensors: Tensors
    output: tuple[int, ...] | None
    n_parameters: int
    children: tuple["Part", ...]

    @cached_property
    def structure(self) -> int:
        """A hash of the classes and names, not of sizes."""
        below = tuple((one.name, one.structure) for one in self.children)
        return hash((self.class_name, below))

    @cached_property
    def content(self) -> int:
        """A hash of classes, names and sizes; not of the part's own name."""
        below = tuple((one.name, one.content) for one in self.children)
        own = tuple(self.settings.items()), tuple(self.tensors.items())
        return hash((self.class_name, own, below))

    def walk(self) -> Iterator["Part"]:
        """Yield this part and all below it, parents first."""
        stack = [self]
        while stack:
            part = stack.pop()
            yield part
            stack.extend(reversed(part.children))


@dataclass(frozen=True, kw_only=True)
class Design:
    """What a block builds and costs.

    Attributes:
        roots: Its modules.
        numbers: Plain values that its code gives to names, as written.
        totals: ``params`` (numbers in parameters), ``nbytes`` (bytes of parameters and
            buffers), ``flops``, ``peak_nbytes`` (most bytes at once, of the device that
            needs most), ``seconds`` (a roofline's, on ``device``), and ``ops``.
        device: The device of ``seconds``, by its name in ``devices.toml``.
    """

    roots: tuple[Part, ...]
    numbers: Mapping[str, object]
    totals: Mapping[str, float]
    device: str


DEVICE: Final = "h100-sxm"


def read_design(
    trace: Trace, numbers: Mapping[str, object] | None = None, device: str = DEVICE
) -> Design:
    """Return the design of a trace.

    Args:
        trace: The recording.
        numbers: Values of names that replace those in the block's text.
        device: Of the estimated time, by its name in ``devices.toml``.

    Raises:
        UnknownDeviceError: There is no such device.
    """
    cost, memory = trace.cost, trace.memory
    roots = tuple(_read_part(trace, node, node.name) for node in trace.modules)
    return Design(
        roots=roots,
        numbers={**_read_numbers(trace), **(numbers or {})},
        totals={
            "params": count_elements(trace.modules, "parameter"),
            "nbytes": count_bytes(trace.modules, "parameter")
            + count_bytes(trace.modules, "buffer"),
            "flops": cost.flops,
            "peak_nbytes": max(memory.peak_by_place.values(), default=0),
            "seconds": cost.seconds(device),
            "ops": trace.program.n_calls,
        },
        device=device,
    )


def _read_part(trace: Trace, node: ModuleNode, path: str) -> Part:
    """Return a module of a trace as a part of its design."""
    call = None if node.first_call is None else trace.module_calls[node.first_call]
    shared = {"same module as": node.shared_with} if node.shared_with else {}
    children = tuple(
        _read_part(trace, child, f"{path}.{child.name}" if path else child.name)
        for child in node.children
    )
    own = [t for t in node.tensors if t.kind == "parameter" and t.tied_to is None]
    return Part(
        name=node.name,
        path=path,
        class_name=node.class_name,
        home=node.definition.path.rpartition(".")[0] if node.definition else "",
        settings={**read_settings(node.settings), **shared},
        tensors={
            one.name: (one.shape, str(one.dtype)[6:], one.tied_to is not None)
            for one in node.tensors
        },
        output=call.outputs[0][1].shape if call and call.outputs else None,
        n_parameters=sum(t.numel for t in own) + sum(c.n_parameters for c in children),
        children=children,
    )


def read_settings(text: str) -> dict[str, str]:
    """Return the text of an ``extra_repr`` by name; without a name by position."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    settings: dict[str, str] = {}
    for at, part in enumerate(parts if text else ()):
        name, equals, value = part.partition("=")
        key, written = (name.strip(), value) if equals else (str(at), name)
        settings[key] = written.strip()
    return settings


def _read_numbers(trace: Trace) -> dict[str, object]:
    """Return the plain values that a block's code gives to names, as written.

    A name with several values is left out.
    """
    found: dict[str, set[object]] = {}
    with suppress(TrialError, SyntaxError):
        block = None if trace.rerun is None else parse_block(trace.rerun)
        for node in ast.walk(block or ast.parse(trace.source)):
            for name, value in list_named(node):
                if isinstance(value, ast.Constant) and type(value.value) in PLAIN:
                    found.setdefault(name, set()).add(value.value)
    return {name: next(iter(one)) for name, one in found.items() if len(one) == 1}


PLAIN: Final = (int, float, bool, str)
