"""What can be chosen in the Materialize panel: modules, blocks of them, or all."""

import sys
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from torch import nn

from meta_magic.errors import MaterializeError
from meta_magic.materializing.fitting import write_path
from meta_magic.materializing.targets import find_modules
from meta_magic.materializing.variables import Variables
from meta_magic.view.choices import Choice, describe_root
from meta_magic.view.outlook import GONE

if TYPE_CHECKING:
    from meta_magic.trace.modules import ModuleNode

__all__ = ["ALL", "Choosable"]

ALL: Final = "all that your variables hold"
"""The choice of what else is on meta, such as schedulers, batches and optimizers."""


class Choosable:
    """The root modules of a trace that are on meta, which are held weakly.

    Args:
        nodes: The root modules.
        modules: A weak reference to each.
    """

    def __init__(
        self, nodes: Sequence["ModuleNode"], modules: Sequence[weakref.ref[nn.Module]]
    ) -> None:
        self._modules = tuple(modules)
        self._names = [node.name for node in nodes]
        roots = [describe_root(node) for node in nodes]
        self.labels = [*roots, ALL] if roots else []

    def forget(self) -> None:
        """Let go of the modules."""
        self._modules = ()

    def find(self, choice: Choice) -> object:
        """Return the chosen module, or the variables of the notebook.

        Raises:
            MaterializeError: It is no more.
        """
        if self._modules and self._is_all(choice):
            return Variables(vars(sys.modules["__main__"]))
        return self._find_modules(choice)[choice.path]

    def name(self, choice: Choice) -> str:
        """Return how the chosen module is written; "" if that is not known."""
        if self._is_all(choice):
            return ""
        root = self._names[choice.root]
        if not choice.path or not root:
            return root if not choice.path else ""
        return write_path(self._find_modules(choice), root, choice.path)

    def label(self, choice: Choice) -> str:
        """Return what is chosen, in words."""
        if choice.path:
            return self.name(choice) or choice.path
        return self.labels[choice.root]

    def _is_all(self, choice: Choice) -> bool:
        return choice.root == len(self._names)

    def _find_modules(self, choice: Choice) -> dict[str, nn.Module]:
        """Return the modules of the chosen tree, by name.

        Raises:
            MaterializeError: It, or the chosen one of it, is no more.
        """
        reference = self._modules[choice.root] if self._modules else None
        root = None if reference is None else reference()
        modules = {} if root is None else dict(find_modules(root))
        if choice.path not in modules:
            raise MaterializeError(GONE)
        return modules
