"""Number modules, holding each weakly."""

import weakref

from torch import nn

__all__ = ["ModuleNumbers"]


class ModuleNumbers:
    """A number for each module met, and a weak hold on those that live.

    Attributes:
        class_names: Qualified class name by module number.
    """

    def __init__(self) -> None:
        self.class_names: list[str] = []
        self._known_by_id: dict[int, tuple[int, weakref.ref[nn.Module]]] = {}

    def of(self, module: nn.Module) -> int:
        """Return the number of ``module``, from 0 in order of first sight."""
        known = self._known_by_id.get(id(module))
        if known is not None:
            if known[1]() is module:
                return known[0]
            del self._known_by_id[id(module)]  # so all stand in the order of numbers
        number = len(self.class_names)
        self.class_names.append(type(module).__qualname__)
        # No callback: one written in Python would swallow an interrupt.
        self._known_by_id[id(module)] = (number, weakref.ref(module))
        return number

    def living(self) -> list[tuple[int, nn.Module]]:
        """Return number and module of all that are still there, in order."""
        known = list(self._known_by_id.values())
        return [(n, module) for n, ref in known if (module := ref()) is not None]

    def close(self) -> None:
        """Let go of all modules."""
        self._known_by_id.clear()
