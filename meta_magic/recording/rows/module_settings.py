"""What a module says of its settings, and where its class stands.

``extra_repr`` is the user's code: it may raise, write a novel, or take its time. The
report does without what it does not get.
"""

import inspect
import time
from typing import Final

from torch import nn

from meta_magic.trace.modules import ModuleClass

__all__ = ["ModuleSettings"]

MAX_TEXT: Final = 300
MAX_NAMES: Final = 12
PLAIN: Final = frozenset({bool, int, float, str})

PATIENCE: Final = 0.01
"""Seconds that the first of a class may take, else none is asked; torch's take 5 us."""


class ModuleSettings:
    """Asks modules for their settings, and knows where their classes stand.

    Args:
        may_ask: Whether the modules' own code may run: not while it is recorded.
    """

    def __init__(self, *, may_ask: bool) -> None:
        self._may_ask = may_ask
        self._known: dict[type, tuple[ModuleClass, bool]] = {}

    def read(self, module: nn.Module) -> tuple[str, ModuleClass]:
        """Return what a module says of itself, and its class.

        Where it has no words of its own, its plain attributes tell.
        """
        known = self._known.get(type(module))
        place, is_asked = known or self._meet(module)
        if not is_asked:
            return list_attributes(module), place
        try:
            text: object = module.extra_repr()
        except Exception as error:  # noqa: BLE001  whatever the user's code raises
            return f"extra_repr raised {type(error).__name__}", place
        if type(text) is not str:
            return "", place
        return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…", place

    def _meet(self, module: nn.Module) -> tuple[ModuleClass, bool]:
        """Return where a class stands, and whether its modules are asked."""
        kind = type(module)
        place = place_class(kind)
        asked = inspect.getattr_static(kind, "extra_repr")
        is_asked = self._may_ask and asked is not nn.Module.extra_repr
        self._known[kind] = place, is_asked
        if is_asked:
            started = time.perf_counter()
            self.read(module)
            is_asked = time.perf_counter() - started <= PATIENCE
        self._known[kind] = place, is_asked
        return place, is_asked


def list_attributes(module: nn.Module) -> str:
    """Return the first numbers, flags and texts that a module holds itself."""
    found: list[str] = []
    for name, value in module.__dict__.items():
        if type(value) in PLAIN and name != "training" and name[:1] != "_":
            found.append(f"{name}={value!r}")
    return ", ".join(found[:MAX_NAMES])[:MAX_TEXT]


def place_class(kind: type[nn.Module]) -> ModuleClass:
    """Return where a class stands, and under which name torch documents it."""
    # What stands there may be of any kind: TorchScript has one that raises when asked.
    forward = inspect.getattr_static(kind, "forward")
    has_code = inspect.isfunction(forward) and forward is not nn.Module.forward
    code = getattr(inspect.unwrap(forward), "__code__", None) if has_code else None
    # What torch does not describe, an old name or a base, has no page.
    is_documented = kind is vars(nn).get(kind.__name__) and "__doc__" in vars(kind)
    return ModuleClass(
        name=kind.__qualname__.rpartition("<locals>.")[2],
        path=f"{kind.__module__}.{kind.__qualname__}",
        docs=f"torch.nn.{kind.__name__}" if is_documented and kind.__doc__ else None,
        file=None if code is None else code.co_filename,
        line=None if code is None else code.co_firstlineno,
    )
