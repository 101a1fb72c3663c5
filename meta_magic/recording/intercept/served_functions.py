"""Answer whole calls of torch's functions that were seen before."""

from collections.abc import Callable
from typing import Any, Final

from meta_magic.recording.as_device.attention import AttentionOf
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.identities.tensors import UNSEEN, TensorRegistry
from meta_magic.recording.intercept.value_checks import ValueChecks
from meta_magic.recording.rows.row_writer import RowWriter
from meta_magic.recording.signatures.arguments import Args, Kwargs
from meta_magic.recording.signatures.cache import SignatureCache
from meta_magic.recording.signatures.function_keys import build_key, is_alone, is_pure
from meta_magic.recording.signatures.learning import learn
from meta_magic.recording.signatures.templates import Operands, Template
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.torch_private.tensor_internals import make_guard

__all__ = ["UNKNOWN", "ServedFunctions"]

UNLEARNT: Final = Template(lambda *_: False)
"""Stands for what a call does that runs operators and is not to be answered."""

UNKNOWN: Final = object()
"""Stands for what a call returns that is to be run."""


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
        is_known: Whether a function was met that may be.
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
        self.is_known = cache.is_pure_by_function.get
        self._refused = 0  # address of the arguments of which there was no key last

    def can_serve(self, func: Any) -> bool:
        """Whether a function is pure, and nothing else looks on."""
        known = self._is_pure_by_function.get(func)
        if known is None:
            known = self._is_pure_by_function[func] = is_pure(func)
            self._refused = 0  # it was not asked for an answer
        return known and is_alone()

    def find(
        self, func: Any, args: Args, kwargs: Kwargs | None, operands: Operands
    ) -> Template | None:
        """Return what answers a call whose like was seen before; None of others.

        Args:
            func: The function.
            args: What it is called with by position.
            kwargs: What it is called with by name.
            operands: Where to put the tensors among these.
        """
        if not is_alone():
            return None
        if self._registry.freed:
            self._registry.note_deaths()
        key = build_key(self._registry, func, args, kwargs, operands)
        if key is None:
            self._refused = id(args)
            return None
        template: Template | None = self._template_by_key.get(key)
        if (
            template is None
            or not template.fits(*operands.tensors)
            or (template.allowed and self._checks.is_suspect(template, operands))
        ):
            return None
        return template

    def answer(self, func: Any, args: Args, kwargs: Kwargs | None) -> Any:
        """Return what a call returns whose like was seen before; UNKNOWN of others."""
        operands = Operands()
        template = self.find(func, args, kwargs, operands)
        if template is None:
            return UNKNOWN
        if template.is_same:
            return operands.tensors[0]
        if template.is_native:
            return self._make_views(template, operands, func, args, kwargs)
        if template.is_write:
            self._rows.append_write(template, operands)
            return None
        if template.kernel:
            self._attention.note(template.kernel, template.n_rows)
        return self._rows.append_function(template, operands)

    def _make_views(
        self,
        template: Template,
        operands: Operands,
        func: Any,
        args: Args,
        kwargs: Kwargs | None,
    ) -> Any:
        """Have torch make views, and record that."""
        for index, _ in template.first_reads:
            if operands.numbers[index] == UNSEEN:  # before there is another on it
                self._registry.storage_of(operands.tensors[index])
        below = DisableTorchDispatch()  # in force already; ``with`` takes as long again
        try:
            views = func(*args, **kwargs) if kwargs else func(*args)
        finally:
            del below
        self._rows.append_views(template, operands, views)
        return views

    def serve(self, func: Any, args: Args, kwargs: Kwargs | None) -> Any:
        """Run a call that could not be answered, and watch what it does.

        If it could not as others were seen at the addresses of its arguments, or as
        the last such call was given parameters, say: answer it.
        """
        refused, self._refused = self._refused, 0
        if refused == id(args):  # as a gradient is recorded for it, say
            return func(*args, **(kwargs or {}))
        registry = self._registry
        registry.note_deaths()
        registry.verify(tensors_in(args, kwargs or {}))
        operands = Operands()
        key = build_key(registry, func, args, kwargs, operands)
        if key is None:
            return func(*args, **(kwargs or {}))
        template = self._template_by_key.get(key)
        if template is UNLEARNT:
            return func(*args, **(kwargs or {}))
        if template is not None:
            if not template.fits(*operands.tensors):
                template.fits = make_guard(operands.tensors)
            returned = self.answer(func, args, kwargs)
            if returned is not UNKNOWN:
                return returned
        return self._learn(key, operands, lambda: func(*args, **(kwargs or {})))

    def _learn(self, key: Any, operands: Operands, call: Callable[[], Any]) -> Any:
        """Run a call that was not seen before, and keep what it did."""
        n_kernels = self._attention.n_chosen
        captured = self._rows.watch(operands.tensors, call)
        with DisableTorchFunction():
            template = learn(self._registry, captured)
        if template is not None:
            template.kernel = self._attention.last_chosen(since=n_kernels)
        elif captured.rows:  # such a call wrote an argument, say
            template = UNLEARNT
        else:  # the function runs no operator: not worth a key the next time
            self._is_pure_by_function[key[0]] = False
            return captured.returned
        self._template_by_key[key] = template
        return captured.returned
