"""Answer for attributes of tensors that say something else to a cell than on meta."""

from types import FrameType
from typing import Any, Final

from meta_magic.recording.identities.call_sites import CallSites
from meta_magic.recording.identities.device_plan import (
    DevicePlan,
    has_carried_placement,
)
from meta_magic.recording.intercept.data_attribute import DATA, DataAttribute
from meta_magic.recording.intercept.device_questions import (
    DEVICE_QUESTIONS,
    DeviceQuestions,
)
from meta_magic.recording.intercept.dispatch_mode import DispatchMode
from meta_magic.recording.intercept.initializers import (
    IS_META,
    UNLOADABLE,
    is_loading,
    is_sending,
    read_initializer,
)
from meta_magic.recording.rows.diagnostics import Diagnostics
from meta_magic.recording.signatures.entries import Args
from meta_magic.torch_private.modes import DisableTorchDispatch
from meta_magic.torch_private.module_internals import LOADED

__all__ = ["TOLD", "ToldAttributes"]

TOLD: Final = DEVICE_QUESTIONS | {IS_META, DATA}
"""Attributes whose answer may depend on who asks, or makes another tensor."""


class ToldAttributes:
    """Answers for the attributes of ``TOLD``, and records what follows.

    Args:
        data: Reads and sets the data of tensors.
        places: Is told which call is running.
        diagnostics: Takes what is rarely meant.
        dispatch: Records what stands in the place of an operator.
        plan: Knows what lies where.

    Attributes:
        data: Reads and sets the data of tensors.
        questions: Answers where a tensor is.
    """

    def __init__(
        self,
        data: DataAttribute,
        places: CallSites,
        diagnostics: Diagnostics,
        dispatch: DispatchMode,
        plan: DevicePlan,
    ) -> None:
        self.data = data
        self._places = places
        self._diagnostics = diagnostics
        self._dispatch = dispatch
        self.questions = DeviceQuestions(plan)

    def tell(self, func: Any, args: Args, asker: FrameType) -> Any:
        """Tell on which device a tensor is, or whether on meta; note ``.data``."""
        if func.__self__ is IS_META:
            return self._tell_is_meta(func, args, asker)
        if func.__self__ is DATA:
            return self.data.read_or_set(func, *args)
        if not (args[0].is_meta or has_carried_placement()):
            return func(*args)
        return self.questions.answer(func.__self__, args[0], asker)

    def _tell_is_meta(self, func: Any, args: Args, asker: FrameType) -> bool:
        """Tell whether a tensor is on meta; record who would do nothing then."""
        is_meta: bool = func(*args)
        initializer = read_initializer(asker) if is_meta else None
        if initializer is not None:
            places = self._places
            running = [initializer.function, asker, None, ()]
            before, places.running = places.running, running
            arguments = initializer.read_arguments(asker)
            try:
                with DisableTorchDispatch():
                    self._dispatch.__torch_dispatch__(initializer, (), *arguments)
                    initializer.count_writes(arguments[0])
            finally:
                places.running = before
        elif is_loading(asker):
            if not is_meta and asker.f_locals[LOADED].is_meta:
                self._diagnostics.note("load", UNLOADABLE)
            return False  # torch warns that a copy does nothing: it is recorded
        return is_meta and not is_sending(asker)
