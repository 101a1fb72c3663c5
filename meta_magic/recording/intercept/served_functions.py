"""Answer whole calls of torch's functions that were seen before."""

from collections.abc import Callable, Sequence
from typing import Any

from meta_magic.recording.as_device.attention import AttentionOf
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.intercept.value_checks import ValueChecks
from meta_magic.recording.rows.row_writer import RowWriter
from meta_magic.recording.signatures.arguments import Args, Kwargs
from meta_magic.recording.signatures.cache import SignatureCache
from meta_magic.recording.signatures.function_keys import build_key, is_alone, is_pure
from meta_magic.recording.signatures.templates import Argument, learn
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction

__all__ = ["ServedFunctions"]


class ServedFunctions:
    """Serves pure functions; what each kind of call does is learnt from its first.

    Args:
        registry: Numbers of tensors.
        rows: Where the operators of a call are written.
        cache: What was learnt, by this recording or by others.
        attention: Notes which kernels attention is.
        checks: Knows what arguments hold.

    Attributes:
        is_serving: Whether anything may be served at all.
    """

    def __init__(
        self,
        registry: TensorRegistry,
        rows: RowWriter,
        cache: SignatureCache,
        attention: AttentionOf,
        checks: ValueChecks,
    ) -> None:
        self.is_serving = cache.is_serving
        self._registry = registry
        self._rows = rows
        self._attention = attention
        self._checks = checks
        self._template_by_key = cache.template_by_key
        self._is_pure_by_function = cache.is_pure_by_function

    def can_serve(self, func: Any) -> bool:
        """Whether a function is pure, and nothing else looks on."""
        known = self._is_pure_by_function.get(func)
        if known is None:
            known = self._is_pure_by_function[func] = is_pure(func)
        return known and is_alone()

    def serve(self, func: Any, args: Args, kwargs: Kwargs | None) -> Any:
        """Answer a call that was seen before; else run it, and watch what it does."""
        rows, attention = self._rows, self._attention
        if self._registry.freed:
            self._registry.note_deaths()
        key, inputs = build_key(self._registry, func, args, kwargs)
        if key is None:
            return func(*args, **(kwargs or {}))
        template = self._template_by_key.get(key)
        if template is not None and not (
            template.allowed and self._checks.is_suspect(template, inputs)
        ):
            if template.is_native:
                for index, _ in template.first_reads:
                    if inputs[index][1] < 0:  # met before there is a second one on it
                        self._registry.storage_of(inputs[index][0])
                with DisableTorchDispatch():
                    views = func(*args, **(kwargs or {}))
                rows.append_views(template, inputs, views)
                return views
            if template.kernel:
                attention.note(template.kernel, template.n_rows)
            return rows.append_function(template, inputs)
        return self._learn(key, inputs, func, lambda: func(*args, **(kwargs or {})))

    def _learn(
        self, key: Any, inputs: Sequence[Argument], func: Any, call: Callable[[], Any]
    ) -> Any:
        """Run a call that was not seen before, and keep what it did."""
        n_kernels = self._attention.n_chosen
        captured = self._rows.watch(inputs, call)
        with DisableTorchFunction():
            template = learn(self._registry, captured)
        if template is None:  # a view, say: not worth a key the next time
            self._is_pure_by_function[func] = False
        else:
            template.kernel = self._attention.last_chosen(since=n_kernels)
            self._template_by_key[key] = template
        return captured.returned
