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
            return known[0]
        number, key, known_by_id = len(self.class_names), id(module), self._known_by_id
        self.class_names.append(type(module).__qualname__)
        ref = weakref.ref(module, lambda _: known_by_id.pop(key, None))
        known_by_id[key] = (number, ref)
        return number

    def living(self) -> list[tuple[int, nn.Module]]:
        """Return number and module of all that are still there, in order."""
        found = [(n, ref()) for n, ref in list(self._known_by_id.values())]
        return sorted(((n, m) for n, m in found if m is not None), key=lambda p: p[0])

    def close(self) -> None:
        """Let go of all modules: their references and callbacks form a cycle."""
        self._known_by_id.clear()
