"""Handle tensors that are not plain: subclasses, sparse, quantized and nested tensors.

A subclass runs operators on plain tensors, which are recorded. For the others torch has
few meta kernels, and some of those are wrong.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from meta_magic.errors import MetaMagicError
from meta_magic.recording.identities.geometries import QUANTIZED
from meta_magic.recording.identities.nested_tensors import (
    is_traced,
    rebuild,
    tensors_in,
)
from meta_magic.recording.identities.tensors import Seen
from meta_magic.recording.intercept.reported_devices import as_fake
from meta_magic.recording.rows.written import Written
from meta_magic.recording.signatures.entries import Args, Kwargs, LiveCall
from meta_magic.torch_private.modes import fake_tensor_mode, make_fake

ON_CPU: Final = "compute it under `with torch.device('cpu'):`"
HINTS: Final = {
    "quantized": f"{ON_CPU}, or quantize by a tensor subclass, as torchao does",
    "sparse": f"{ON_CPU}, or with dense tensors",
    "nested": f"{ON_CPU}, or with layout=torch.jagged",
    "mkldnn": f"{ON_CPU}, or leave the layout to torch",
}
"""Advice for each kind of tensor that has no meta kernels."""

FAKE: Final = "FakeTensor"
PLAIN: Final = frozenset[type]({Tensor, nn.Parameter})

ASSERTION: Final = "INTERNAL ASSERT FAILED"
NESTED: Final = (
    "torch has no strided nested tensors on meta (see layout=torch.jagged, which is "
    "recorded)"
)

FLEX_ATTENTION: Final = "higher_order.flex_attention"
ASSUMED: Final = (
    "flex_attention was recorded as torch runs it without torch.compile: the whole "
    "matrix of scores, masked blocks and all"
)


class SpecialTensors:
    """Handles tensors that are not plain; notes what is not recorded."""

    def __init__(self, write: Written) -> None:
        self._plan, self._sites = write.plan, write.sites
        self._diagnostics = write.diagnostics

    def pass_on(
        self, func: Any, types: Sequence[type], args: Args, kwargs: Kwargs | None
    ) -> tuple[Any] | None:
        """Let tensor subclasses run an operator; None if all tensors are plain."""
        for kind in types:
            if is_traced(kind):
                self._diagnostics.count_unseen(kind.__name__)
                given = self._make_all_fake((args, kwargs or {}))
                return (func(*given[0], **given[1]),)
            handler = getattr(kind, "__torch_dispatch__", None)
            if handler is not Tensor.__torch_dispatch__:
                return (
                    NotImplemented,
                )  # its operators on plain tensors come here again
        return None

    def _make_all_fake(self, given: Any) -> Any:
        """Return arguments with fake tensors for plain tensors on meta.

        Parameters and buffers of a module are fake already. Plain tensors that it holds
        as attributes become fake here.
        """
        fakes = [t for t in tensors_in(*given) if type(t).__name__ == FAKE]
        if not fakes:
            return given

        def make(value: Any) -> Any:
            if type(value) not in PLAIN or not value.is_meta:
                return value
            placement = self._plan.placement_of(value) or self._plan.home
            return make_fake(value, fakes[0], as_fake(placement))

        return rebuild(given, make)

    def has_unseen(self, made: Sequence[Tensor]) -> bool:
        """Whether an operator made tensors that cannot be recorded."""
        names = [type(tensor).__name__ for tensor in made if is_traced(type(tensor))]
        names += ["a nested tensor" for tensor in made if is_nested(tensor)]
        if names:
            self._diagnostics.count_unseen(names[0])
        return bool(names)

    def is_unrecorded(self, args: Args, kwargs: Kwargs) -> bool:
        """Whether an operator is not recorded: nested tensors have no shape.

        A tensor that a ``FakeTensorMode`` makes is not recorded either.
        """
        if fake_tensor_mode() is not None:
            self._diagnostics.count_unseen("FakeTensor")
            return True
        found = any(map(is_nested, tensors_in(args, tuple(kwargs.values()))))
        if found:
            self._diagnostics.count_unseen("a nested tensor")
        return found

    def trace(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Call a higher-order operator on traced tensors; NotImplemented for others."""
        kinds = [type(tensor) for tensor in tensors_in(args, kwargs)]
        passed = self.pass_on(func, list(filter(is_traced, kinds)), args, kwargs)
        return NotImplemented if passed is None else passed[0]

    def begin(self, op: str) -> None:
        """Note what an operator assumes; operators inside get their own call sites."""
        if op == FLEX_ATTENTION:
            self._diagnostics.note("foreign", ASSUMED)
        self._sites.running = None


def is_nested(tensor: Tensor) -> bool:
    """Whether a tensor has rows of different lengths, in torch's own layout."""
    return type(tensor) is Tensor and tensor.is_nested


def check_quantized(op: str, call: LiveCall) -> None:
    """Raise if a quantized tensor was asked for and another was made on meta."""
    given = (*call.args, *call.kwargs.values())
    wanted = [v for v in given if isinstance(v, torch.dtype) and v in QUANTIZED]
    metas = [seen[2].record.dtype for _, seen in call.outputs if seen[2].is_meta]
    if wanted and metas and (made := metas[0]) not in QUANTIZED:
        raise MetaMagicError(
            f"{op} makes a tensor of {made} on meta, not of {wanted[0]}: torch has no "
            f"quantized tensors there. To go on, {HINTS['quantized']}."
        )


def explain_missing_kernel(
    error: Exception, op: str, inputs: Sequence[tuple[Tensor, Seen]]
) -> None:
    """Add to an operator's own error that meta has no kernel for it, and what helps.

    For a nested tensor torch would raise an internal assertion.
    """
    kind = find_kind(op, inputs)
    if kind is not None and isinstance(error, RuntimeError):
        is_assertion = kind == "nested" and ASSERTION in str(error)
        error = NotImplementedError(NESTED) if is_assertion else error
        error.add_note(
            f"meta_magic: on meta torch has no {op} ({kind}). To go on, {HINTS[kind]}."
        )
        try:
            if is_assertion:
                raise error from None
        finally:
            del error  # else this frame and the error keep each other alive
    elif isinstance(error, NotImplementedError):
        error.add_note(
            f"meta_magic: {op} has no kernel on meta, so its result is not known. "
            f"To go on, {ON_CPU}, or write one (see torch.library.register_fake)."
        )


def find_kind(op: str, inputs: Sequence[tuple[Tensor, Seen]]) -> str | None:
    """Return the kind of an operator's tensors for which meta has few kernels."""
    texts = [op, *(str(seen[2].record.layout) for _, seen in inputs)]
    texts += ["quantized" for _, seen in inputs if seen[2].record.dtype in QUANTIZED]
    texts += ["nested" for tensor, _ in inputs if tensor.is_nested]
    found = (kind for kind in HINTS if any(kind.rstrip("d") in text for text in texts))
    return next(found, None)
