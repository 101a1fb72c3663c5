"""The trace: a recorded program and the questions that can be put to it."""

from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from meta_magic.trace.failed_call import FailedCall
from meta_magic.trace.formulas.operations import count_flops
from meta_magic.trace.modules import ModuleNode
from meta_magic.trace.networks import build_network
from meta_magic.trace.notes import CellSource, Note
from meta_magic.trace.program import Program
from meta_magic.trace.questions import Questions
from meta_magic.trace.rerun import Rerun
from meta_magic.trace.sequences import ModuleCalls, OpCalls
from meta_magic.trace.summary import format_summary
from meta_magic.trace.table import build_table, list_columns

if TYPE_CHECKING:
    import os
    import weakref

    import pandas as pd
    from networkx import MultiDiGraph
    from torch import nn

__all__ = ["Trace"]


@dataclass(frozen=True, kw_only=True)
class Trace(Questions):
    """What one cell, or one ``with record()`` block, did.

    A trace is plain data: it can be compared, pickled and kept, and holds no tensor.

    Attributes:
        program: The operator and module calls in compact form.
        modules: The module trees that were built or called, in order of appearance.
        notes: What the user should know, in order of line.
        error: ``ExceptionName: message`` if the block raised, else None. Where a call
            of torch raised it, that is the last of the trace, and marked as such.
        error_line: Line of the cell at which it was raised, or None.
        nbytes_real: Bytes of the real storages that operators of the block made.
        seconds: Wall time of the block; not compared.
        cell: The cell as written.
        roots: A weak reference to each of ``modules``; neither compared nor pickled.
        rerun: What it takes to record the block again, in this process. Neither
            compared nor pickled; None for a block that was run by ``exec``.
        failed: The call that raised, as the user's code made it; as ``rerun``.

    Example:
        >>> with record() as trace:
        ...     y = nn.Linear(3, 4)(torch.ones(2, 3))
        >>> trace
        <Trace: 7 operators, 1 module tree>
    """

    program: Program
    modules: tuple[ModuleNode, ...]
    notes: tuple[Note, ...]
    error: str | None
    nbytes_real: int
    seconds: float = field(compare=False)
    cell: CellSource = field(default_factory=CellSource)
    error_line: int | None = None
    roots: "tuple[weakref.ref[nn.Module] | None, ...]" = field(
        default=(), compare=False, repr=False
    )
    rerun: Rerun | None = field(default=None, compare=False, repr=False)
    failed: FailedCall | None = field(default=None, compare=False, repr=False)

    def __getstate__(self) -> dict[str, object]:
        # Without what is cached: it can be built again. And without what is alive.
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        return state | {"roots": (), "rerun": None, "failed": None}

    @property
    def source(self) -> str:
        """The cell as written, or "" outside of IPython."""
        return self.cell.text

    @property
    def is_empty(self) -> bool:
        """Whether nothing was recorded, and there is nothing to say of it."""
        return not (len(self.ops) or self.modules or self.notes or self.error)

    @cached_property
    def ops(self) -> OpCalls:
        """The operator calls: a sequence of :class:`OpCall`, built as they are read."""
        return OpCalls(self.program)

    @cached_property
    def module_calls(self) -> ModuleCalls:
        """The module calls, in order of beginning: :class:`ModuleCall` records."""
        return ModuleCalls(self.program)

    @property
    def flops(self) -> int:
        """FLOPs of the operators that have a formula; see :attr:`OpCall.flops`."""
        counts = zip(
            self.program.signatures, self.program.count_signatures(), strict=True
        )
        return sum(n * (count_flops(signature) or 0) for signature, n in counts if n)

    @list_columns
    def to_pandas(self) -> "pd.DataFrame":
        """Return one row per operator call, columns named as the fields of OpCall."""
        return build_table(self)

    def show(self, *, depth: int | None = None, height: int = 420) -> None:
        """Show the report in a notebook, or print the summary where there is none.

        Args:
            depth: Levels of modules that are open at first, a run of modules being one;
                None for as many as can be read at once, and all of the text.
            height: Height of its views, in pixels.
        """
        # A floor above, and so only when it is asked for.
        reports = import_module("meta_magic.magic.reports")
        settings = {"depth": depth, "height": height, "hide": ["parameters"]}
        reports.show(self, settings)

    def charts(self, of: str = "parameters", *, device: str = "h100-sxm") -> None:
        """Show a chart by plotly.

        Args:
            of: ``"parameters"``: a treemap of their bytes by module, a picture where
                plotly is not; ``"memory"``: bytes alive after each operator; or
                ``"roofline"``: how fast operators are at best, by their intensity.
            device: Of the roofline, by its name in ``devices.toml``.

        Raises:
            ValueError: There is no such chart.
            UnknownDeviceError: There is no such device; the error lists all.
        """
        import_module("meta_magic.magic.reports").show_charts(self, of, device)

    def to_html(self, path: "str | os.PathLike[str]") -> None:
        """Write the report as one HTML file that needs no kernel and no network.

        Args:
            path: The file; overwritten if it is there.
        """
        page = import_module("meta_magic.view.page")  # a floor above, as in show()
        Path(path).write_text(page.render_page(self), encoding="utf-8")

    def to_networkx(self) -> "MultiDiGraph":
        """Return operators as the nodes of a graph, and as edges what they read.

        All values are plain; what is absent is left out.

        Returns:
            A directed graph without circles; where an operator reads several tensors of
            another, several edges lead there.

            A node is the index of an operator, with ``kind="op"`` and fields of its
            :class:`OpCall`: ``op``, ``function``, ``module``, ``root``,
            ``module_call``, ``phase``, ``line``, ``forward``, ``flops``,
            ``nbytes_read``, ``nbytes_written``, ``raised``; or, for a tensor that no
            operator made, ``"tensor <tensor_id>"``, with ``kind="tensor"`` and what
            edges have: ``tensor_id``, ``storage_id``, ``shape`` (a tuple), ``dtype``
            (such as ``"float32"``), ``nbytes`` (bytes). An edge leads from what made or
            last wrote a tensor to what reads it; ``output`` and ``input`` say as which.
        """
        return build_network(self.ops)

    def to_model_explorer(self, path: "str | os.PathLike[str]") -> None:
        """Write the operators for Google's model-explorer, which draws large graphs.

        Open the file with ``pip install ai-edge-model-explorer`` and
        ``model-explorer graph.json``. Its layers are phases, where there are several,
        and modules; its nodes operators, with what they read, return and cost.

        Args:
            path: The file; overwritten if it is there. Its name ends with ``.json``, by
                which model-explorer knows how to read it.

        Raises:
            ValueError: The name does not.
            OSError: The file cannot be written.
        """
        file = Path(path)
        if file.suffix != ".json":
            raise ValueError(
                f"model-explorer reads graphs of files named *.json, not {file.name!r}"
            )
        home = import_module("meta_magic.view.model_explorer")  # as in show()
        file.write_text(home.render_graphs(self), encoding="utf-8")

    def _repr_html_(self) -> str:
        # For front ends without IPython, such as marimo, which puts it into a frame.
        page = import_module("meta_magic.view.page")
        return f"<!doctype html>{page.render_snapshot(self, page.pack(self))}"

    def _ipython_display_(self) -> None:
        self.show()

    def summary(self, depth: int | None = None) -> str:
        """Return the summary line, the notes and the folded module tree as text.

        Args:
            depth: Levels of modules that are open; None for all.
        """
        return format_summary(self, depth)

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        failed = f", failed with {self.error.split(':')[0]}" if self.error else ""
        n_calls, trees = self.program.n_calls, len(self.modules)
        word = "tree" if trees == 1 else "trees"
        return f"<Trace: {n_calls:,} operators, {trees} module {word}{failed}>"

    def __len__(self) -> int:
        return len(self.ops)
