"""Decide which calls the CPU is asked about, and raise its errors in the cell.

The dispatch mode calls ``check`` for a new signature that meta accepts, and ``rescue``
for a call that meta refuses; the function mode calls ``reword`` when a function of
torch failed, as the CPU may refuse the function with another message than its operator.
"""

import math
import re
from functools import cache
from typing import Any, Final, NoReturn

import torch

from meta_magic.errors import MetaMagicError
from meta_magic.recording.as_device.cpu_kernels import (
    REFUSALS,
    ask_cpu,
    take_geometries,
)
from meta_magic.recording.as_device.oracle.oracle import Oracle, Verdict, is_view
from meta_magic.recording.as_device.oracle.proxy_tensors import MAX_NUMEL
from meta_magic.recording.identities.storages import span_nbytes
from meta_magic.recording.identities.tensors import tensors_in
from meta_magic.recording.signatures.cache import Key
from meta_magic.recording.signatures.entries import (
    Args,
    Given,
    Kwargs,
    OpTable,
    sharing_of_inputs,
)
from meta_magic.torch_private.dispatcher import kernels_put_in
from meta_magic.torch_private.modes import functorch_interpreter
from meta_magic.trace.options import DeviceName
from meta_magic.trace.signature import CPU

OF_TORCH: Final = ("aten.", "torch_nn.")
"""Prefixes of torch's own operators; ``torch_nn`` are those written in Python."""

NEVER_ASKED: Final = (
    *("aten._to_copy.", "aten.record_stream.", "aten.repeat_interleave."),
    *("aten.nonzero_static.", "aten._ctc_loss", "aten.ctc_loss."),
    *("aten.segment_reduce.", "aten._segment_reduce", "aten._pack_padded_sequence"),
    *("aten._pad_packed_sequence", "aten._make_per_tensor_quantized_tensor"),
    *("aten.to_padded_tensor.", "aten._embedding_bag_backward", "aten._weight_int"),
    *("aten._embedding_bag_dense", "aten._embedding_bag_sparse"),
    "aten._embedding_bag_per",
    *("aten._scaled_dot_product", "aten._flash_attention", "aten._thnn"),
    *("aten.mkldnn_rnn_layer", "aten.lstm", "aten.gru", "aten.rnn_", "aten.quantized"),
    *("aten._native_multi_head_attention", "aten._transformer_encoder_layer"),
    *("aten.empty.", "aten.empty_strided.", "aten.zeros.", "aten.ones."),
)
"""Operators that move tensors, that only refuse values, that end the process if sizes
do not fit, or that accept any size and dtype, and no number."""

UNCHECKED: Final = (
    *("aten.native_batch_norm", "aten._native_batch_norm", "aten._batch_norm"),
    "aten.batch_norm_backward.",
)
"""Operators that do not check that their operands have a number for each channel."""

FLOAT_STATISTICS: Final = tuple(
    f"aten.native_{kind}_norm_backward." for kind in ("layer", "batch", "group")
)
"""Operators that accept statistics in float32 on CUDA, and not on the CPU."""

NO_KERNEL: Final = "not implemented for"
"""The error for a dtype that has no kernel on the CPU; CUDA may have one."""


accepted_kinds: set[object] = set()
"""Kinds of elementwise calls that the CPU accepts; meta checks their sizes itself."""


def describe_elementwise(table: OpTable, given: Given) -> object:
    """Return a key that decides if the CPU accepts an elementwise call; else None."""
    if not table.is_pure or torch.Tag.pointwise not in table.func.tags:
        return None
    records = [seen[2].record for _, seen in given.inputs]
    tensors = [(record.dtype, not record.shape) for record in records]
    operands = (*given.args, *given.kwargs.values())
    values = [v if isinstance(v, (str, torch.dtype)) else type(v) for v in operands]
    names = tuple(given.kwargs)
    return table.func, torch.get_default_dtype(), *tensors, *values, names


def may_end_process(table: OpTable, given: Given) -> bool:
    """Whether an operator would read past the end of an operand."""
    if not table.name.startswith(UNCHECKED):
        return False
    shapes = [seen[2].record.shape for _, seen in given.inputs]
    n_channels = shapes[0][1] if len(shapes[0]) > 1 else None
    return any(len(shape) == 1 and shape[0] != n_channels for shape in shapes)


def bound_numel(value: Any) -> int:
    """Return the product of all numbers in arguments: a bound on the result."""
    if isinstance(value, dict):
        value = (*value.values(),)
    if isinstance(value, (list, tuple)):
        return math.prod(map(bound_numel, value))
    return max(1, abs(value)) if type(value) is int else 1


@cache
def is_shared_view(operator: Any) -> bool:
    """Whether an operator is a view whose code torch shares between all devices."""
    name = operator.name().replace("::", "/")
    return is_view(operator) and f"{name}/Meta" not in kernels_put_in


class Refusals:
    """Raises the errors of the CPU for calls that meta accepts.

    Args:
        is_probe: Whether the recording is a probe: a refusal of meta is final, and the
            CPU is asked about all other calls, however long that takes.
    """

    def __init__(self, *, is_probe: bool = False, is_patient: bool = False) -> None:
        self._oracle = Oracle(is_patient=is_probe or is_patient)
        self._is_probe = is_probe
        self._raised = 0
        self.is_unasked = False

    def is_due(
        self, table: OpTable, key: Key, given: Given, device: DeviceName
    ) -> bool:
        """Whether the CPU must be asked about a call: its signature is new."""
        if device == "meta" or (table.is_pure and key in table.entries):
            return False
        never = (*NEVER_ASKED, *(FLOAT_STATISTICS if device == "cuda" else ()))
        if not table.name.startswith(OF_TORCH) or table.name.startswith(never):
            return False
        is_same = is_shared_view(table.func) and not table.may_overrun
        if is_same or torch.Tag.inplace_view in table.func.tags:
            return False
        key = (*key, *sharing_of_inputs(given.inputs))
        return table.is_pure or table.may_overrun or key not in table.entries

    def check(
        self, table: OpTable, given: Given, device: DeviceName, returned: Any = None
    ) -> Any:
        """Raise the CPU's error for a call that meta accepts, or return its result."""
        args, kwargs, _ = given
        kind = describe_elementwise(table, given)
        if kind in accepted_kinds or (
            table.may_overrun
            and span_nbytes(returned) <= returned.untyped_storage().nbytes()
        ):
            return returned
        is_known = returned is not None or not (table.has_out or table.reads_data)
        if not is_known and bound_numel((args, kwargs)) > MAX_NUMEL:
            return returned
        made, is_unsafe = tensors_in(returned), may_end_process(table, given)
        question = table.func, args, kwargs, made
        verdict = self._ask(device, None, *question, is_unsafe=is_unsafe)
        self.is_unasked = verdict is Verdict.UNASKED
        if kind is not None and verdict is Verdict.ACCEPTED:
            accepted_kinds.add(kind)
        if verdict is Verdict.ACCEPTED and table.is_pure and device == "cpu":
            return take_geometries(returned, self._oracle.returned)
        return returned

    def rescue(
        self, table: OpTable, given: Given, device: DeviceName, error: Exception
    ) -> Any:
        """Raise the CPU's error for a call that meta refused, or return its result."""
        is_final = device == "meta" or self._is_probe
        if is_final or isinstance(error, MetaMagicError):
            return NotImplemented
        args, kwargs, _ = given
        self._raised = id(error)
        verdict = self._ask(device, error, table.func, args, kwargs, is_unsafe=True)
        is_taken = verdict is Verdict.ACCEPTED and not may_end_process(table, given)
        # Torch has no kernel for meta, or one written in Python that broke.
        is_lacking = isinstance(error, NotImplementedError)
        if is_taken or is_lacking or not isinstance(error, REFUSALS):
            return ask_cpu(table.func, args, kwargs)
        return NotImplemented

    def reword(self, func: Any, args: Args, kwargs: Kwargs, error: Exception) -> None:
        """Raise the CPU's error for a function, if one of its operators was refused."""
        is_asked = id(error) == self._raised and not self._is_probe
        if not is_asked or torch.is_autocast_enabled("cuda"):
            return
        if functorch_interpreter() is not None:  # its tensors have no memory
            return
        self._raised = 0  # functions around it, as backward(), ran the user's code
        if "device" in kwargs:
            kwargs = {**kwargs, "device": CPU}
        answer = self._oracle.ask(func, args, kwargs, is_unsafe=True)
        try:
            if isinstance(answer, Exception) and str(answer) != str(error):
                raise_instead(answer, error)
        finally:
            del answer  # as below

    def _ask(
        self, device: DeviceName, error: Exception | None, *question: Any, **how: Any
    ) -> Verdict:
        """Raise the error of the CPU, if the recorded device refuses the call, too."""
        answer = self._oracle.ask(*question, **how)
        if isinstance(answer, Verdict):
            return answer
        is_lacking = isinstance(answer, NotImplementedError) or NO_KERNEL in str(answer)
        if is_lacking and device == "cuda":
            return Verdict.UNKNOWN
        self._raised = id(answer)
        try:
            raise_instead(answer, error)
        finally:
            del answer  # else this frame and the error keep each other alive


def raise_instead(answer: Exception, error: Exception | None) -> NoReturn:
    """Raise the CPU's error, with the context of meta's error."""
    try:
        raise answer
    finally:
        if error is not None:
            answer.__context__ = error.__context__
        del answer


# Types of tensors in messages

ON_META: Final = re.compile(r"\bMeta(\w+)Type\b|\btorch\.meta\.(\w+)\b")

BACKENDS: Final = {"cpu": ("CPU", "torch"), "cuda": ("CUDA", "torch.cuda")}

OLD: Final = frozenset(
    {"Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short"}
)
"""Types with a class of tensors of their own, whose name torch writes instead.

Source: ``processErrorMsg`` in ``torch/csrc/Exceptions.cpp`` of torch 2.13.
"""


def name_types(error: Exception, device: DeviceName) -> None:
    """Replace types of meta tensors in an error by those of a device."""
    if device == "meta" or not ON_META.search(str(error)):
        return
    backend, package = BACKENDS[device]

    def name(found: re.Match[str]) -> str:
        kind = found[1]
        if kind is None:
            return f"{package}.{found[2]}"
        return f"{package}.{kind}Tensor" if kind in OLD else f"{backend}{kind}Type"

    parts = (ON_META.sub(name, p) if isinstance(p, str) else p for p in error.args)
    error.args = tuple(parts)
