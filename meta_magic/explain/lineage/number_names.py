"""What the numbers and tensors of a block are called by its variables and modules."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from meta_magic.explain.lineage.traced_numbers import origin_of
from meta_magic.session.operand_names import NUMBER, find_paths, is_shells
from meta_magic.torch_private.module_internals import is_made, walk_modules

__all__ = ["Names"]


class Names:
    """Knows names by the identity of what they stand for.

    Args:
        variables: The block's variables when it had ended.
        modules: Modules in whose methods it was.
    """

    def __init__(
        self, variables: Mapping[str, Any], modules: Sequence[nn.Module]
    ) -> None:
        self._variables = {n: v for n, v in variables.items() if not is_shells(n)}
        held = [v for v in self._variables.values() if isinstance(v, nn.Module)]
        made = [module for module in (*held, *modules) if is_made(module)]
        below = {id(m) for root in made for path, m in walk_modules(root) if path}
        self._roots = [module for module in made if id(module) not in below]
        self._name_by_number: dict[int, str] = {}
        for number, name in self._walk_numbers():
            self._name_by_number.setdefault(id(number), name)

    def name_number(self, number: object) -> str:
        """Return what a traced number is called; "" if no name stands for it."""
        return self._name_by_number.get(id(number), "")

    def name_tensor(self, tensor: Tensor) -> str:
        """Return what a tensor is called."""
        for name, value in self._variables.items():
            if value is tensor:
                return name
            if isinstance(value, nn.Module) and is_made(value):
                for path in find_paths(tensor, value):
                    return f"{name}{path}"
        paths = (path for root in self._roots for path in find_paths(tensor, root))
        return next((path.removeprefix(".") for path in paths), "a tensor")

    def _walk_numbers(self) -> Iterator[tuple[object, str]]:
        """Yield traced numbers that variables and attributes of modules stand for."""
        for name, value in self._variables.items():
            if origin_of(value) is not None:
                yield value, name
        by_module = {id(value): name for name, value in self._variables.items()}
        for root in self._roots:
            own = by_module.get(id(root), type(root).__name__)
            for path, module in walk_modules(root):
                owner = NUMBER.sub(r"[\1]", f".{path}").removeprefix(".") or own
                owner = f"{own}{owner}" if owner.startswith("[") else owner
                for name, value in vars(module).items():
                    values = value if isinstance(value, tuple) else (value,)
                    numbers = (one for one in values if origin_of(one) is not None)
                    yield from ((number, f"{owner}.{name}") for number in numbers)
