"""The trace: a recorded program and the questions that can be put to it."""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meta_magic.errors import UnfinishedTraceError
from meta_magic.trace.calls import ModuleCalls, OpCalls
from meta_magic.trace.flops import count_flops
from meta_magic.trace.program import Program
from meta_magic.trace.records import CellSource, ModuleNode, Note
from meta_magic.trace.summary import format_summary
from meta_magic.trace.table import build_table, list_columns

if TYPE_CHECKING:
    import os
    import weakref

    import pandas as pd
    from torch import nn

__all__ = ["Trace"]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What one cell, or one ``with record()`` block, did.

    A trace is plain data: it can be compared, pickled and kept, and holds no tensor.

    Attributes:
        program: The operator and module calls in compact form.
        modules: The module trees that were built or called, in order of appearance.
        notes: What the user should know, in order of line.
        error: ``ExceptionName: message`` if the block raised, else None; the trace
            then ends with the last operator that succeeded.
        error_line: Line of the cell at which it was raised, or None.
        nbytes_real: Bytes of the real storages that operators of the block made.
        seconds: Wall time of the block; not compared.
        cell: The cell as written.
        roots: For each of ``modules`` a weak reference to the module itself, for as
            long as both live; neither compared nor pickled.
    """

    program: Program
    modules: tuple[ModuleNode, ...]
    notes: tuple[Note, ...]
    error: str | None
    nbytes_real: int
    seconds: float = field(compare=False)
    cell: CellSource = field(default_factory=CellSource)  # no class attribute: see
    # __getattr__
    error_line: int | None = field(default_factory=lambda: None)
    roots: "tuple[weakref.ref[nn.Module] | None, ...]" = field(
        default_factory=tuple, compare=False, repr=False
    )

    @classmethod
    def promise(cls) -> "Trace":
        """Return a trace that :meth:`fulfil` fills once its block has ended."""
        return cls.__new__(cls)

    def fulfil(self, trace: "Trace") -> None:
        """Become equal to ``trace``."""
        self.__dict__.update(trace.__dict__)

    def __getstate__(self) -> dict[str, object]:
        # Without what is cached: it can be built again. And without what is alive.
        names = self.__dataclass_fields__
        return {name: self.__dict__[name] for name in names} | {"roots": ()}

    def __getattr__(self, name: str) -> Any:
        # Reached through a property, too, when that misses a field.
        is_unfinished = "program" not in self.__dict__
        if is_unfinished and not name.startswith("_"):
            raise UnfinishedTraceError(
                f"trace.{name} is known when the `with record()` block has ended"
            )
        if hasattr(type(self), name):  # a property that failed: say why
            return object.__getattribute__(self, name)
        raise AttributeError(f"a Trace has no attribute {name!r}")

    @property
    def source(self) -> str:
        """The cell as written, or "" outside of IPython."""
        return self.cell.text

    @cached_property
    def ops(self) -> OpCalls:
        """The operator calls: a sequence of :class:`OpCall`, built as they are read."""
        return OpCalls(self.program)

    @cached_property
    def module_calls(self) -> ModuleCalls:
        """The module calls, in order of beginning: :class:`ModuleCall` records."""
        return ModuleCalls(self.program)

    @cached_property
    def flops(self) -> int:
        """FLOPs of the operators that have a formula; see :attr:`OpCall.flops`."""
        counts = Counter(self.program.signature_numbers())
        signatures = self.program.signatures
        return sum(n * (count_flops(signatures[s]) or 0) for s, n in counts.items())

    @list_columns
    def to_pandas(self) -> "pd.DataFrame":
        """Return one row per operator call, columns named as the fields of OpCall."""
        return build_table(self.ops)

    def show(self, *, depth: int = 2, height: int = 420) -> None:
        """Show the report in a notebook, or print the summary where there is none.

        Args:
            depth: Levels of the module tree and the flow that are open at first.
            height: Height of its views, in pixels.
        """
        # A floor above, and so only when it is asked for.
        reports = import_module("meta_magic.magic.reports")
        settings = {"depth": depth, "height": height, "hide": ["parameters"]}
        reports.show(self, settings)

    def charts(self) -> None:
        """Show plotly's treemap of parameter bytes by module.

        A saved notebook keeps it, as a picture where plotly is not.
        """
        import_module("meta_magic.magic.reports").show_charts(self)

    def to_html(self, path: "str | os.PathLike[str]") -> None:
        """Write the report as one HTML file that needs no kernel and no network.

        Args:
            path: The file; overwritten if it is there.
        """
        page = import_module("meta_magic.view.page")  # a floor above, as in show()
        Path(path).write_text(page.render_page(self), encoding="utf-8")

    def summary(self) -> str:
        """Return the summary line, the notes and the folded module tree as text."""
        return format_summary(self)

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        failed = f", failed with {self.error.split(':')[0]}" if self.error else ""
        trees = len(self.modules)
        word = "tree" if trees == 1 else "trees"
        return f"<Trace: {len(self):,} operators, {trees} module {word}{failed}>"

    def __len__(self) -> int:
        return len(self.ops)
