"""A hint below a plain cell that uses the model of a recorded cell.

Without ``%%meta``, ``y = model(x)`` raises torch's error about devices or sizes, or
gives a tensor without values. None names the cell that made ``model``; the hint does.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import PurePath
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meta_magic.trace.notes import name_cell

if TYPE_CHECKING:
    from meta_magic.magic.magics import MetaMagics
    from meta_magic.trace.signature import SourcePosition


OF_META: Final = re.compile(r"\bmeta\b|not on the expected device")
"""Torch's errors about meta tensors contain this."""


class Recorded(NamedTuple):
    """A variable that holds a tensor of a recorded cell."""

    name: str
    is_module: bool
    made_at: "SourcePosition | None"


class PlainCells:
    """Checks each plain cell after it ran."""

    def __init__(self, magics: "MetaMagics") -> None:
        shell: Any = magics.shell
        self._magics = magics
        self._shell = shell
        shell.events.register("post_run_cell", self.look)

    def remove(self) -> None:
        """Uninstall it."""
        self._shell.events.unregister("post_run_cell", self.look)

    def look(self, result: Any) -> None:
        """End a cell; print a line if it used recorded tensors as real."""
        self._magics.end_cell(result)
        is_plain = not self._magics.is_recorded
        if not is_plain or "meta_magic.session.recording" not in sys.modules:
            return
        from meta_magic.recording.identities.origins import has_origins  # noqa: PLC0415  torch

        cell = result.info.raw_cell if has_origins() else None
        text = self._advise(cell, result.error_in_exec) if cell else None
        if text:
            print(text)  # noqa: T201  below the traceback, or the output

    def _advise(self, cell: str, error: BaseException | None) -> str | None:
        """Return the hint for a cell, if it needs one."""
        from meta_magic.session.note_finders import is_without_values  # noqa: PLC0415  torch

        read, bound = list_names(self._shell.transform_cell(cell))
        namespace = self._shell.user_ns
        if error is not None and not OF_META.search(f"{type(error).__name__}: {error}"):
            called = find_failed_module(error, {n: namespace.get(n) for n in read})
            found = next(find_recorded(called, called), None)
            why = "put %%meta on this cell to see why its call is refused"
            return found and f"meta_magic: {self._describe(found)}: {why}"
        if error is None:
            made = [name for name in bound if is_without_values(namespace.get(name))]
            if not made:
                return None
        recorded = [*find_recorded((n for n in read if n not in bound), namespace)]
        # A module rather than its output: the user wants to call it.
        found = next((r for r in recorded if r.is_module), None) or next(
            iter(recorded), None
        )
        if found is None:
            return self._advise_on_cache(read)
        if error is None:
            return (
                f"meta_magic: `{made[0]}` has no values: line {bound[made[0]]} made it "
                f"without %%meta from {self._describe(found)}: put %%meta on this cell"
            )
        way = f", or run %meta materialize {found.name}" if found.is_module else ""
        return f"meta_magic: {self._describe(found)}: put %%meta on this cell{way}"

    def _advise_on_cache(self, read: Iterable[str]) -> str | None:
        """Return the hint for a cell that got a recorded tensor from a cache."""
        from torch import nn  # noqa: PLC0415  torch

        from meta_magic.materializing.companions import find_cached  # noqa: PLC0415  torch

        values = map(self._shell.user_ns.get, read)
        roots = [value for value in values if isinstance(value, nn.Module)]
        modules = [item for root in roots for item in root.named_modules()]
        cached = {held.name: held.tensor for held in find_cached(modules)}
        found = next(find_recorded(cached, cached), None)
        if found is None:
            return None
        function = found.name.removesuffix("(...)")
        is_of_function = function != found.name
        owner = function if is_of_function else found.name.partition("[")[0]
        empty = f"{owner}.{'cache_clear' if is_of_function else 'clear'}()"
        return (
            f"meta_magic: a cache keeps {self._describe(found)}: run {empty}, or put "
            "%%meta on this cell"
        )

    def _describe(self, found: Recorded) -> str:
        """Return a variable with the cell that made it."""
        at = found.made_at
        if at is None:
            return f"`{found.name}`, which was made under %%meta"
        file = name_cell(at.file) or PurePath(at.file).name
        return f"`{found.name}`, which was made under %%meta in {file}, line {at.line}"


def find_recorded(
    names: Iterable[str], namespace: Mapping[str, object]
) -> Iterator[Recorded]:
    """Yield the variables of some names that hold a tensor of a recorded cell."""
    from torch import Tensor, nn  # noqa: PLC0415  torch

    from meta_magic.materializing.targets import Variables, list_tensors, walk  # noqa: PLC0415  torch
    from meta_magic.session.note_finders import find_first_origin, find_maker  # noqa: PLC0415  torch
    from meta_magic.trace.calls import OpCalls  # noqa: PLC0415  torch

    for name in names:
        value = namespace.get(name)
        parts = (part for _, part in walk(Variables({name: value})))
        held = ([p] if isinstance(p, Tensor) else list_tensors(p) for p in parts)
        found = map(find_first_origin, chain.from_iterable(held))
        origins = [origin for origin in found if origin is not None]
        if origins:
            makers = ((p, find_maker(storage, p)) for p, storage in origins)
            made = (OpCalls(p)[n].position for p, n in makers if n is not None)
            at = next(made, None)
            yield Recorded(name, isinstance(value, nn.Module), at)


def find_failed_module(
    error: BaseException, roots: Mapping[str, object]
) -> dict[str, object]:
    """Return the innermost module whose call torch refused, by its name in the cell."""
    from torch import nn  # noqa: PLC0415  torch

    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    running = [frame.f_locals.get("self") for frame in reversed(frames)]
    module = next((one for one in running if isinstance(one, nn.Module)), None)
    if not isinstance(error, RuntimeError) or module is None:
        return {}
    for root, value in roots.items():
        for name, part in value.named_modules() if isinstance(value, nn.Module) else ():
            if part is module:
                return {".".join(filter(None, (root, name))): module}
    return {type(module).__name__: module}


def list_names(code: str) -> tuple[dict[str, None], dict[str, int]]:
    """Return the names that a cell reads, and those that it binds, with the lines."""
    try:
        nodes = [*walk_in_order(ast.parse(code))]
    except SyntaxError:
        return {}, {}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    read = {node.id: None for node in names if isinstance(node.ctx, ast.Load)}
    return read, {n.id: n.lineno for n in names if isinstance(n.ctx, ast.Store)}


def walk_in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it, as they are written."""
    yield node
    for child in ast.iter_child_nodes(node):
        yield from walk_in_order(child)
