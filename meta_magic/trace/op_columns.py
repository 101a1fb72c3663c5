"""The columns of the operators table, each described here and nowhere else.

``to_pandas()`` and its docstring, the payload, and the table in the browser read
:data:`OP_COLUMNS`. A new column is one entry: its name, its help, and how its value is
read of a call. :class:`Column` is what these columns share with ``MODULE_COLUMNS``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Literal, TypeAlias

from meta_magic.trace.calls import OpCall
from meta_magic.trace.program import (
    Program,
    Span,
    find_assumptions,
    find_evaluations,
    find_kernels,
    find_raised,
)

Format: TypeAlias = Literal[
    "text", "number", "bytes", "flops", "count", "share", "flow", "marks", "function"
]
"""How a value is written: in the browser by ``static/dom.js``, in texts by ``summary``.

The browser shows values of an unknown format as they are.
"""

NUMBERS: Final = ("number", "bytes", "flops", "count", "share")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the operators, or of the modules.

    Attributes:
        name: In the header, and in ``to_pandas()``.
        help: One sentence for the header's tooltip and the docs.
        format: How the report writes its values.
        width: Minimum in pixels; columns share the rest in proportion.
        is_pinned: Whether it stays visible when the table is scrolled sideways.
        is_optional: Whether the report has it only where some row has a value.
        is_extra: Whether the report hides it until a person chooses it.
    """

    name: str
    help: str
    format: Format = "text"
    width: int = 120
    is_pinned: bool = False
    is_optional: bool = False
    is_extra: bool = False

    @property
    def is_number(self) -> bool:
        """Whether its values are numbers, which are aligned at the right."""
        return self.format in NUMBERS


Wire: TypeAlias = Literal["none", "call", "signature"] | Callable[[Program], list[Span]]
Decider: TypeAlias = Literal["call", "signature", "call_site", "module"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpColumn(Column):
    """A column of the operators table.

    Attributes:
        type: Type of its values in ``to_pandas()``, as text. Whole numbers that can be
            absent have pandas' nullable ``Int64`` type.
        unit: Unit of its values; "" for none.
        read: Gives the value of a call; None for the call's field of that name.
        wire: How the report gets its values. ``call``: one is sent for each call; the
            Nones of a tuple are not shown. ``signature``: one is sent for each
            signature, read of its first call, which is right only if the value follows
            from shapes, dtypes and arguments alone. ``none``: nothing is sent, as the
            report has the values for other views. A function: returns the spans of
            operators that have a value.
        is_in_table: Whether ``to_pandas()`` has it, and not the report alone.
        decided_by: All calls of one signature (call site, module) have the same value,
            so it is read of the first of them.
    """

    type: str
    unit: str = ""
    read: Callable[[OpCall], object] | None = None
    wire: Wire = "none"
    is_in_table: bool = True
    decided_by: Decider = "call"

    @property
    def is_number(self) -> bool:
        """Whether its values are numbers, which are aligned at the right."""
        return self.type.startswith(("int", "float"))

    @property
    def reader(self) -> Callable[[OpCall], object]:
        """The function that gives the value of a call."""
        return self.read or attrgetter(self.name)


OP_COLUMNS: Final[tuple[OpColumn, ...]] = (
    OpColumn(
        name="index",
        type="int",
        help="Position in the trace, from 0.",
        width=68,
    ),
    OpColumn(
        name="function",
        type="str or None",
        help="The Python-level torch call that it came from.",
        format="function",
        width=130,
        decided_by="call_site",
    ),
    OpColumn(
        name="op",
        type="str",
        help="Name as torch has it, with its overload.",
        is_pinned=True,
        width=190,
        decided_by="signature",
    ),
    OpColumn(
        name="module",
        type="str or None",
        help="Name of the module within its root, as state_dict keys it.",
        width=180,
        decided_by="module",
    ),
    OpColumn(
        name="place",
        type="str or None",
        help="Device that the code names for what it makes or writes, all on meta.",
        width=76,
        is_optional=True,
        wire="signature",
        decided_by="signature",
    ),
    OpColumn(
        name="inputs",
        type="tuple",
        help="Tensors read: their metadata in pandas, shape and dtype in the report.",
        width=180,
    ),
    OpColumn(
        name="outputs",
        type="tuple",
        help="Tensors returned, as those read.",
        width=140,
    ),
    OpColumn(
        name="raised",
        type="str or None",
        help="The error that it raised, which ended the block.",
        width=240,
        is_optional=True,
        wire=find_raised,
    ),
    OpColumn(
        name="flops",
        type="int or None",
        unit="FLOPs",
        help="Operations of products, 2 for each multiply-add; absent for all else.",
        format="flops",
        width=112,
        decided_by="signature",
    ),
    OpColumn(
        name="nbytes_read",
        type="int",
        unit="bytes",
        help="Bytes read, each element once; none for a view.",
        format="bytes",
        decided_by="signature",
    ),
    OpColumn(
        name="nbytes_written",
        type="int",
        unit="bytes",
        help="Bytes written or newly made; none for a view.",
        format="bytes",
        width=148,
        decided_by="signature",
    ),
    OpColumn(
        name="intensity",
        type="float or None",
        unit="FLOPs per byte",
        help="FLOPs for each byte read or written; a GPU is fed from some 100 on.",
        format="number",
        width=92,
        is_extra=True,
        decided_by="signature",
    ),
    OpColumn(
        name="time",
        type="float",
        help="Share of the time after initialization, estimated for the chosen device.",
        format="share",
        width=68,
        is_extra=True,
        is_in_table=False,
    ),
    OpColumn(
        name="alive",
        type="int",
        unit="bytes",
        help="Bytes of all tensors that are alive after it, on all devices.",
        format="bytes",
        is_extra=True,
        is_in_table=False,
    ),
    OpColumn(
        name="arguments",
        type="tuple",
        help="Arguments as given; the report leaves out what is only tensors.",
        width=140,
        is_extra=True,
    ),
    OpColumn(
        name="phase",
        type="str",
        help="What the program was doing.",
        width=80,
        is_extra=True,
        decided_by="call_site",
    ),
    OpColumn(
        name="line",
        type="int or None",
        help="Line of the cell; for a backward operator, that of its forward operator.",
        width=60,
        is_extra=True,
        decided_by="call_site",
    ),
    OpColumn(
        name="kernel",
        type="str or None",
        help="For attention, the kernel that the device would choose, and why.",
        width=240,
        wire=find_kernels,
        is_extra=True,
    ),
    OpColumn(
        name="evaluation",
        type="Evaluation or None",
        help="What it took to answer it with real values, because it reads data.",
        width=180,
        wire=find_evaluations,
        is_extra=True,
    ),
    OpColumn(
        name="assumed",
        type="str or None",
        help="What was assumed for its sizes, or for sizes of its inputs.",
        wire=find_assumptions,
        is_extra=True,
    ),
    OpColumn(
        name="forward",
        type="int or None",
        help="For a backward operator, the index of the forward operator.",
        width=84,
        is_extra=True,
    ),
    OpColumn(
        name="views",
        type="tuple",
        help="For each output, the input whose storage it shares.",
        width=66,
        is_extra=True,
        decided_by="signature",
    ),
    OpColumn(
        name="writes",
        type="tuple",
        help="The inputs that it writes, by their number.",
        width=72,
        is_extra=True,
        decided_by="signature",
    ),
    OpColumn(
        name="root",
        type="int or None",
        help="Which module tree holds the module: an index into Trace.modules.",
        width=64,
        is_extra=True,
        decided_by="module",
    ),
    OpColumn(
        name="module_call",
        type="int or None",
        help="Call of a module in which it ran: an index into Trace.module_calls.",
        is_extra=True,
    ),
    OpColumn(
        name="position",
        type="SourcePosition or None",
        help="The innermost frame that is not torch's.",
        width=160,
        is_extra=True,
        decided_by="call_site",
    ),
)
"""In the order in which the browser shows them."""
