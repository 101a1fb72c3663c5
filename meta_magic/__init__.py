"""Run a notebook cell on torch's meta device and see the tensor metadata flow.

In a notebook::

    %load_ext meta_magic

    %%meta
    model = torch.nn.Linear(3, 4)
    model(torch.randn(2, 3))

In a script::

    with meta_magic.record() as trace:
        model = torch.nn.Linear(3, 4)
    print(trace)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from meta_magic.errors import (
    DeviceTableError,
    ExerciseError,
    MaterializeError,
    MetaMagicError,
    MissingValueError,
    MixedDeviceError,
    ReplayError,
    TrialError,
    UnfinishedTraceError,
    UnknownDeviceError,
    WorldError,
)

if TYPE_CHECKING:
    from meta_magic.cost.costs import Cost, Roofline, UnknownOperator, Work
    from meta_magic.cost.device_table import Device, add_devices
    from meta_magic.designs.diff import diff
    from meta_magic.materializing.materialize import materialize
    from meta_magic.materializing.report import FilledTensor, MaterializeReport
    from meta_magic.ranks.recorded_ranks import record_ranks
    from meta_magic.replaying.verify import replay, verify
    from meta_magic.session.record import meta_like, record
    from meta_magic.teach.exercises import exercise, grade
    from meta_magic.trace.calls import ModuleCall, OpCall, TensorMetadata
    from meta_magic.trace.formulas.call_costs import flop_formula
    from meta_magic.trace.modules import ModuleNode, ModuleTensor
    from meta_magic.trace.notes import Note
    from meta_magic.trace.options import ValueLimits
    from meta_magic.trace.signature import SourcePosition
    from meta_magic.trace.trace import Trace
    from meta_magic.trace.world import Sent, World
    from meta_magic.trials.sweeps import sweep_ranks
    from meta_magic.view.charts import sweep_figure

__all__ = [
    "Cost",
    "Device",
    "DeviceTableError",
    "ExerciseError",
    "FilledTensor",
    "MaterializeError",
    "MaterializeReport",
    "MetaMagicError",
    "MissingValueError",
    "MixedDeviceError",
    "ModuleCall",
    "ModuleNode",
    "ModuleTensor",
    "Note",
    "OpCall",
    "ReplayError",
    "Roofline",
    "Sent",
    "SourcePosition",
    "TensorMetadata",
    "Trace",
    "TrialError",
    "UnfinishedTraceError",
    "UnknownDeviceError",
    "UnknownOperator",
    "ValueLimits",
    "Work",
    "World",
    "WorldError",
    "add_devices",
    "diff",
    "exercise",
    "flop_formula",
    "grade",
    "load_ipython_extension",
    "materialize",
    "meta_like",
    "real",
    "record",
    "record_ranks",
    "replay",
    "sweep_figure",
    "sweep_ranks",
    "unload_ipython_extension",
    "verify",
]

MODULE_BY_NAME = {
    "Cost": "cost.costs",
    "Device": "cost.device_table",
    "Roofline": "cost.costs",
    "UnknownOperator": "cost.costs",
    "Work": "cost.costs",
    "add_devices": "cost.device_table",
    "diff": "designs.diff",
    "flop_formula": "trace.formulas.call_costs",
    "FilledTensor": "materializing.report",
    "MaterializeReport": "materializing.report",
    "materialize": "materializing.materialize",
    "meta_like": "session.record",
    "real": "session.record",
    "record": "session.record",
    "record_ranks": "ranks.recorded_ranks",
    "replay": "replaying.verify",
    "sweep_figure": "view.charts",
    "sweep_ranks": "trials.sweeps",
    "exercise": "teach.exercises",
    "grade": "teach.exercises",
    "verify": "replaying.verify",
    "ModuleCall": "trace.calls",
    "OpCall": "trace.calls",
    "TensorMetadata": "trace.calls",
    "ModuleNode": "trace.modules",
    "ModuleTensor": "trace.modules",
    "Note": "trace.notes",
    "SourcePosition": "trace.signature",
    "Trace": "trace.trace",
    "Sent": "trace.world",
    "World": "trace.world",
    "ValueLimits": "trace.options",
}


def __getattr__(name: str) -> Any:
    # On first use: %load_ext must work, and be quick, before torch is imported.
    if name not in MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{MODULE_BY_NAME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


def load_ipython_extension(shell: Any) -> None:
    """Register ``%%meta``; called by ``%load_ext meta_magic``.

    Example:
        >>> load_ipython_extension(shell)  # what %load_ext meta_magic does
        >>> shell.find_cell_magic("meta") is not None
        True
    """
    from meta_magic.magic.extension import load  # noqa: PLC0415  imports IPython

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Remove ``%%meta``; called by ``%unload_ext meta_magic``.

    Example:
        >>> load_ipython_extension(shell)
        >>> unload_ipython_extension(shell)  # what %unload_ext meta_magic does
        >>> shell.find_cell_magic("meta") is None
        True
    """
    from meta_magic.magic.extension import unload  # noqa: PLC0415  imports IPython

    unload(shell)
