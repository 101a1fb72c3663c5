"""Run a kernel on meta as the device would have it, or refuse it as that does."""

from contextlib import suppress
from functools import partial
from typing import Any, Final

from torch import Tensor
from torch.autograd.graph import increment_version

from meta_magic.errors import MissingValueError
from meta_magic.recording.as_device.adjustments import ADJUSTMENTS
from meta_magic.recording.as_device.corrections import CORRECTIONS, SHORT_KERNELS
from meta_magic.recording.as_device.cpu_kernels import lay_out_written
from meta_magic.recording.as_device.layouts import lay_out_made, lay_out_moved
from meta_magic.recording.as_device.oracle.cpu_refusals import Refusals
from meta_magic.recording.intercept.mixed_devices import explain_mix
from meta_magic.recording.intercept.special_tensors import explain_missing_kernel
from meta_magic.recording.intercept.value_checks import ValueSource
from meta_magic.recording.rows.diagnostics import Diagnostics
from meta_magic.recording.rows.draws import Drawing
from meta_magic.recording.rows.row_writer import RowWriter
from meta_magic.recording.signatures.entries import Given, OpTable
from meta_magic.recording.signatures.operator_keys import Key
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.trace.options import DeviceName

__all__ = ["KernelRuns"]

UNMADE: Final = (
    "real numbers were drawn without those that the cell draws before them on meta, "
    "which would take too much (see torch.manual_seed, --value-seconds)"
)


class KernelRuns:
    """Runs kernels.

    Args:
        rows: Has real numbers be drawn as they would without a recording.
        diagnostics: Takes what failed or may differ.
        values: Computes values of meta tensors.
        refusals: Refuses what the CPU refuses.
    """

    def __init__(
        self,
        rows: RowWriter,
        diagnostics: Diagnostics,
        values: ValueSource,
        refusals: Refusals,
    ) -> None:
        self._rows = rows
        self._diagnostics = diagnostics
        self._values = values
        self._refusals = refusals

    def run(
        self,
        table: OpTable,
        key: Key,
        given: Given,
        draw: Drawing | None,
        kernels: DeviceName,
    ) -> Any:
        """Call an operator, or refuse it as the device does."""
        if not self._refusals.is_due(table, key, given, kernels):
            return self.run_or_rescue(table, given, draw, kernels)
        if table.written or table.reads_data:  # meta resizes it, or values are read
            self._refusals.check(table, given, kernels)
            return self.run_or_rescue(table, given, draw, kernels)
        returned = self.run_or_rescue(table, given, draw, kernels)
        return self._refusals.check(table, given, kernels, returned)

    def run_or_rescue(
        self, table: OpTable, given: Given, draw: Drawing | None, kernels: DeviceName
    ) -> Any:
        """Call an operator; one that draws for real from where plain meta would."""
        args, kwargs, inputs = given
        try:
            if draw is None or not draw.is_real:
                return self._run_on_meta(table, given, kernels)
            call = partial(table.func, *args, **kwargs)
            return self._rows.draw_for_real(draw.generator, call, self._find_state)
        except Exception as error:
            failures = self._diagnostics.failures
            failure = self._diagnostics.locate(str(table.func))
            is_first = failure not in failures
            failures[failure] = None
            returned = self._rescue(table, given)
            if returned is NotImplemented:
                returned = self._refusals.rescue(table, given, kernels, error)
            if returned is NotImplemented:
                explain_mix(error, [tensor for tensor, _ in inputs])
                explain_missing_kernel(error, table.name, inputs)
                raise
            if is_first:
                del failures[failure]
            return returned

    def _find_state(self, source: int) -> Tensor | None:
        """Return where a generator would stand, had all draws been made."""
        state = self._values.state_at(source)
        if state is None:
            self._diagnostics.note("draw", UNMADE)
            self._diagnostics.doubt(UNMADE)
        return state

    def _run_on_meta(self, table: OpTable, given: Given, kernels: DeviceName) -> Any:
        """Call an operator, and see to it that all is as it would be on the device."""
        args, kwargs, _ = given
        short = None if kernels == "meta" else SHORT_KERNELS.get(table.name)
        with DisableTorchFunction():  # a kernel's own calls are no code of the cell
            returned = (short or table.func)(*args, **kwargs)
        if table.counts_writes:
            increment_version(args[0])
        if table.has_out and kernels == "cpu":
            lay_out_written(table.func, given)
        adjust = ADJUSTMENTS[kernels].get(table.name)
        if adjust is not None:
            returned = adjust(returned, *args, **kwargs)
        if kernels == "cpu" and table.makes_new:
            returned = lay_out_made(table.func, given, returned)
        return returned

    def _rescue(self, table: OpTable, given: Given) -> Any:
        """Return what an operator returns that failed on meta, or NotImplemented."""
        correct = CORRECTIONS.get(table.name)
        if correct is not None and all(seen[2].is_meta for _, seen in given.inputs):
            with suppress(Exception):  # of wrong arguments: the CPU says of which
                returned = correct(*given.args, **given.kwargs)
                if returned is not NotImplemented:
                    return returned
        try:
            returned = self._values.evaluate(table, given)
        except MissingValueError:
            if not table.is_foreign:  # else what it lacks is a kernel for meta
                raise
            return NotImplemented
        if isinstance(returned, Tensor) and not returned.is_meta:
            return lay_out_moved(returned, given.args[0])
        return returned
