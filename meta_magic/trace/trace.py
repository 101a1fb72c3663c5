"""The trace, which users hold: a recorded program, and methods that answer questions.

``with mm.record() as trace: ...`` gives one. What floors above answer (cost, memory,
advice, explanations, reports) is imported when it is asked for: a recording that only
looks at shapes pays for none of it.
"""

from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from meta_magic.trace.calls import ModuleCalls, OpCalls
from meta_magic.trace.failed_call import FailedCall
from meta_magic.trace.formulas.call_costs import count_flops
from meta_magic.trace.modules import ModuleNode
from meta_magic.trace.notes import MISTAKES, CellSource, Note, sort_notes
from meta_magic.trace.options import Rerun
from meta_magic.trace.program import Program
from meta_magic.trace.questions import Questions
from meta_magic.trace.summary import build_table, document_columns
from meta_magic.trace.world import SentCalls, World, list_sent

if TYPE_CHECKING:
    import os
    import weakref
    from collections.abc import Mapping

    import pandas as pd
    from networkx import MultiDiGraph
    from torch import nn

    from meta_magic.cost.costs import Cost
    from meta_magic.cost.initialization import TensorContents
    from meta_magic.cost.memory_timeline import Memory
    from meta_magic.cost.program_columns import Columns
    from meta_magic.cost.step_times import StepTime
    from meta_magic.teach.lessons import Lesson


@dataclass(frozen=True, kw_only=True)
class Trace(Questions):
    """The recording of one cell, or of one ``with record()`` block.

    A trace is plain data: it can be compared, pickled and kept, and holds no tensor.

    Attributes:
        program: The operator and module calls in compact form.
        modules: The module trees that were built or called, in order of appearance.
        recorded_notes: Notes of what the recording noticed, in order of line.
        error: ``ExceptionName: message`` if the block raised, else None. If a call of
            torch raised it, the last of ``ops`` is that call and has ``raised``.
        error_line: Line of the cell that raised, or None.
        nbytes_real: Bytes of the real storages that operators of the block made.
        seconds: Wall time of the block; not compared.
        cell: The cell as written.
        roots: A weak reference to each of ``modules``; neither compared nor pickled.
        rerun: The block's text and variables, to record it again in this process.
            Neither compared nor pickled; None for a block that was run by ``exec``.
        failed: The call of the user's code that raised; neither compared nor pickled.
        world: The world that the block was recorded for; None for one process.
        is_checked: Whether ``notes`` has likely mistakes, too.

    Example:
        >>> with record() as trace:
        ...     y = nn.Linear(3, 4)(torch.ones(2, 3))
        >>> trace
        <Trace: 7 operators, 1 module tree>
    """

    program: Program
    modules: tuple[ModuleNode, ...]
    recorded_notes: tuple[Note, ...]
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
    world: World | None = None
    is_checked: bool = False

    def __getstate__(self) -> dict[str, object]:
        # Without cached properties, and without references to live objects.
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        return state | {"roots": (), "rerun": None, "failed": None}

    @property
    def source(self) -> str:
        """The cell as written, or "" outside of IPython."""
        return self.cell.text

    @cached_property
    def notes(self) -> tuple[Note, ...]:
        """Notes for the user, sorted by line; those without a line come last.

        What the recording noticed, and programs that run and are wrong: certain ones,
        and with ``record(check=True)`` likely ones, and sizes at which they fail.

        Example:
            >>> import meta_magic, torch
            >>> with meta_magic.record() as trace:
            ...     error = torch.ones(8, 1) - torch.ones(8)
            >>> trace.notes[0].kind, trace.notes[0].line
            ('broadcast', 2)
        """
        from meta_magic.cost.wrong.mistakes import find_wrong  # noqa: PLC0415

        found = find_wrong(self, has_likely=self.is_checked)
        if self.rerun is not None and (found or self.is_checked):
            from meta_magic.explain.note_repairs import check_notes  # noqa: PLC0415

            found = check_notes(self, found)
        return sort_notes((*self.recorded_notes, *found))

    @cached_property
    def wrong(self) -> tuple[Note, ...]:
        """What runs and is wrong, in order of line: certain and likely mistakes.

        A comment ``# meta: ok`` at the end of a line silences it.

        Example:
            >>> import meta_magic, torch
            >>> with meta_magic.record() as trace:
            ...     x = torch.ones(4, 8, 8, 3).view(4, 3, 8, 8)
            >>> trace.wrong[0].kind, trace.wrong[0].severity
            ('mixed', 'likely')
        """
        from meta_magic.cost.wrong.mistakes import find_wrong  # noqa: PLC0415

        mistakes = [note for note in self.recorded_notes if note.kind in MISTAKES]
        return sort_notes((*mistakes, *find_wrong(self)))

    @property
    def is_empty(self) -> bool:
        """Whether there are no operators, modules or notes."""
        return not (len(self.ops) or self.modules or self.notes)

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

    @cached_property
    def sent(self) -> SentCalls:
        """The collectives and messages of the process, in order.

        Each is a :class:`Sent` record.

        Example:
            >>> import meta_magic, torch.distributed as dist
            >>> with meta_magic.record(world=8) as trace:
            ...     dist.init_process_group("nccl")
            ...     dist.all_reduce(torch.ones(2, 3))
            >>> trace.sent[0].kind, trace.sent[0].nbytes, trace.sent[0].ranks
            ('all_reduce', 24, (0, 1, 2, 3, 4, 5, 6, 7))
        """
        return list_sent(self)

    @cached_property
    def columns(self) -> "Columns":
        """The program as numpy columns, from which cost and memory are computed."""
        from meta_magic.cost.program_columns import read_columns  # noqa: PLC0415

        return read_columns(self.program.with_raised)

    @property
    def cost(self) -> "Cost":
        """FLOPs and bytes by phase, module and operator, and a roofline's time.

        Each access counts again: keep the result for several questions.
        """
        from meta_magic.cost.costs import build_cost  # noqa: PLC0415

        return build_cost(self)

    def step_time(
        self, device: str = "h100-sxm", links: str = "nvlink4-ib400"
    ) -> "StepTime":
        """Return the estimated time of the rank's computing and sending.

        Args:
            device: An accelerator, by its name in ``devices.toml``.
            links: How accelerators are connected, by their name in ``links.toml``.

        Raises:
            UnknownDeviceError: There is no such device, or there are no such links.
        """
        from meta_magic.cost.step_times import estimate_step_time  # noqa: PLC0415

        return estimate_step_time(self, device, links)

    @cached_property
    def peak_by_place(self) -> "Mapping[str, int]":
        """The most bytes at once on each device that the code names; {} if none.

        Tensors for which it names no device count on the CPU.
        """
        tensors = [(*s.inputs, *s.outputs) for s in self.program.signatures]
        is_named = any(g.placement is not None for pair in tensors for g in pair)
        return self.memory.peak_by_place if is_named else {}

    @cached_property
    def memory(self) -> "Memory":
        """The bytes alive after each operator call, by device and by use."""
        from meta_magic.cost.memory_timeline import measure_memory  # noqa: PLC0415

        return measure_memory(self)

    @cached_property
    def contents(self) -> "tuple[TensorContents, ...]":
        """What the parameters and buffers hold that the block allocated.

        Those with ``is_empty`` are memory that nothing wrote, as ``to_empty`` leaves
        it; those with ``is_other`` hold another kind of values than their constructor
        gave: a constant, random numbers, or computed values.

        Example:
            >>> import meta_magic, torch
            >>> with meta_magic.record() as trace:
            ...     norm = torch.nn.LayerNorm(3, device="meta").to_empty(device="cpu")
            >>> [str(one) for one in trace.contents if one.is_empty][0]
            'norm.weight is uninitialized memory: nothing wrote it after line 2; its \
        constructor gave 1 (line 2)'
        """
        from meta_magic.cost.initialization import follow_contents  # noqa: PLC0415

        return tuple(follow_contents(self.program, self.columns, self.modules))

    def teach(self) -> "Lesson":
        """Return a lesson: a question for each line, and a picture as its answer."""
        from meta_magic.teach.lessons import build_lesson  # noqa: PLC0415

        return build_lesson(self)

    @document_columns
    def to_pandas(self, *, dims: bool = False) -> "pd.DataFrame":
        """Return one row per operator call, columns named as the fields of OpCall.

        Args:
            dims: Whether to add ``input_shapes`` and ``output_shapes``: the shapes by
                name, of a trace that was recorded with ``dims=``.
        """
        return build_table(self.named, dims=dims)

    def show(self, *, depth: int | None = None, height: int = 420) -> None:
        """Show the report in a notebook, or print the summary where there is none.

        Args:
            depth: Levels of modules that are open at first, a run of modules being one;
                None for as many as can be read at once, and for the whole text.
            height: Height of its views, in pixels.
        """
        from meta_magic.magic.reports import show  # noqa: PLC0415

        show(self, {"depth": depth, "height": height})

    def charts(self, of: str = "parameters", *, device: str = "h100-sxm") -> None:
        """Show a chart by plotly.

        Args:
            of: ``"parameters"``: a treemap of their bytes by module, a plain picture
                without plotly; ``"memory"``: bytes alive after each operator; or
                ``"roofline"``: the best speed of operators, by their intensity.
            device: The device of the roofline, by its name in ``devices.toml``.

        Raises:
            ValueError: There is no such chart.
            UnknownDeviceError: There is no such device; the error lists all.
        """
        from meta_magic.magic.reports import show_charts  # noqa: PLC0415

        show_charts(self, of, device)

    def figure(
        self,
        path: "str | os.PathLike[str]" = "flow",
        *,
        depth: int | None = None,
        style: str = "paper",
    ) -> tuple[Path, Path]:
        """Write the flow as an SVG and a PDF, to be printed.

        The report's script draws it in a browser without a window, so Chromium or
        Chrome must be installed; ``META_MAGIC_BROWSER`` names another one.

        Args:
            path: Of the files, without ``.svg`` and ``.pdf``.
            depth: Levels of modules that are open; None for what can be read at once.
            style: ``"paper"`` numbers the closed boxes, and writes a caption that says
                what they are beside the figure, as ``.txt``; ``"report"`` has marks of
                what is a view, is written in place, or opens.

        Returns:
            The paths of both files.

        Raises:
            ValueError: There is no such style.
            FileNotFoundError: No browser was found.
        """
        from meta_magic.view.page import write_figure  # noqa: PLC0415

        return write_figure(self, Path(path), depth=depth, style=style)

    def to_html(self, path: "str | os.PathLike[str]") -> None:
        """Write the report as one HTML file, which needs no kernel and no network."""
        from meta_magic.view.page import render_page  # noqa: PLC0415

        Path(path).write_text(render_page(self), encoding="utf-8")

    def to_networkx(self) -> "MultiDiGraph":
        """Return a graph: operators are its nodes, tensors that they read its edges.

        Returns:
            A directed graph without cycles. If an operator reads several tensors of
            another one, several edges connect them.

            A node is the index of an operator, with ``kind="op"`` and fields of its
            :class:`OpCall`: ``op``, ``function``, ``module``, ``root``,
            ``module_call``, ``phase``, ``line``, ``forward``, ``flops``,
            ``nbytes_read``, ``nbytes_written``, ``raised``. For a tensor that no
            operator made it is ``"tensor <tensor_id>"``, with ``kind="tensor"`` and the
            fields of edges: ``tensor_id``, ``storage_id``, ``shape`` (a tuple),
            ``dtype`` (such as ``"float32"``), ``nbytes`` (bytes). An edge leads from
            the operator that made or last wrote a tensor to the one that reads it;
            ``output`` and ``input`` are the indices of the tensor there.
        """
        from meta_magic.trace.graphs import build_network  # noqa: PLC0415

        return build_network(self.ops)

    def to_model_explorer(self, path: "str | os.PathLike[str]") -> None:
        """Write the operators for Google's model-explorer, which draws large graphs.

        Open the file with ``pip install ai-edge-model-explorer`` and
        ``model-explorer graph.json``. Its layers are modules, and phases if there are
        several; its nodes are operators with inputs, outputs and cost.

        Args:
            path: The file; overwritten if it exists. Its name must end with ``.json``,
                by which model-explorer knows the format.

        Raises:
            ValueError: The name ends otherwise.
        """
        from meta_magic.view.model_explorer import write_graphs  # noqa: PLC0415

        write_graphs(self, Path(path))

    def _repr_html_(self) -> str:
        # For front ends without IPython, such as marimo, which shows it in a frame.
        from meta_magic.view.page import render_snapshot  # noqa: PLC0415
        from meta_magic.view.payload import pack  # noqa: PLC0415

        return f"<!doctype html>{render_snapshot(self, pack(self))}"

    def _ipython_display_(self) -> None:
        self.show()

    def summary(self, depth: int | None = None) -> str:
        """Return the summary line, the notes and the folded module tree as text.

        Args:
            depth: Levels of modules that are open; None for all.
        """
        from meta_magic.trace.summary import format_summary  # noqa: PLC0415

        return format_summary(self.named, depth)

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        failed = f", failed with {self.error.split(':')[0]}" if self.error else ""
        n_calls, trees = self.program.n_calls, len(self.modules)
        word = "tree" if trees == 1 else "trees"
        return f"<Trace: {n_calls:,} operators, {trees} module {word}{failed}>"

    def __len__(self) -> int:
        return len(self.ops)
