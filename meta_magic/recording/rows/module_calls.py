"""Record module calls, and every module that is built, through torch's hooks.

A row of a module call says which operators it made, and its inputs and outputs. Read
:class:`ModuleCallRecorder` first.
"""

import dataclasses
import sys
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from meta_magic.recording.identities.call_sites import CallSites, Site
from meta_magic.recording.identities.storages import Clock
from meta_magic.recording.identities.tensors import (
    LiveGeometry,
    TensorRegistry,
    is_traced,
)
from meta_magic.recording.rows.module_trees import (
    ModuleNumbers,
    Tree,
    describe_columns,
    find_root,
    walk_tree,
)
from meta_magic.torch_private.distributed import local_of
from meta_magic.torch_private.interrupts import uninterrupted
from meta_magic.torch_private.modes import (
    DisableTorchFunction,
    WithoutTracing,
    tracing_state,
)
from meta_magic.torch_private.module_internals import hooks_with_kwargs
from meta_magic.torch_private.tensor_internals import current_autograd_node
from meta_magic.trace.program import MODULE_HEADER
from meta_magic.trace.signature import Geometry

if TYPE_CHECKING:
    from types import FrameType

    from meta_magic.trace.program import Structure


MAX_DEPTH: Final = 6
PLAIN: Final = frozenset({bool, int, float, str})


class ModuleValues:
    """Describes the arguments and results of modules."""

    def __init__(self, registry: TensorRegistry) -> None:
        self.words = array("I")
        self.structures: list[Structure] = []
        self._registry = registry
        self._structure_by_key: dict[object, int] = {}

    def append(self, args: tuple[object, ...], kwargs: Any, output: object) -> int:
        """Append the words of a call, and return where they begin."""
        words = [0]
        with DisableTorchFunction():
            if (
                type(output) is Tensor
                and len(args) == 1
                and type(args[0]) is Tensor
                and not kwargs
            ):  # as most calls: the same key and words in fewer steps
                taken, read = args[0], self._registry.read
                number, _, geometry = read(taken)
                made_number, _, made_geometry = read(output)
                structure = self.intern(((geometry,), None, made_geometry))
                given = number << 1 | taken.requires_grad
                made = made_number << 1 | output.requires_grad
                return self.append_words([structure, given, made])
            key = (
                tuple([self._describe(item, words, 1) for item in args]),
                self._describe(kwargs, words) if kwargs else None,
                self._describe(output, words),
            )
        words[0] = self.intern(key)
        return self.append_words(words)

    def append_words(self, words: list[int]) -> int:
        """Append words, and return where they begin."""
        begin = len(self.words)
        self.words.fromlist(words)  # twice as fast as ``extend``
        return begin

    def _describe(  # noqa: PLR0911  one more call for each tensor is slow
        self, value: object, words: list[int], depth: int = 0
    ) -> object:
        """Return the structure of ``value``; append the words of the tensors in it."""
        if isinstance(value, Tensor):
            if type(value) is not Tensor and is_traced(type(value)):
                return None  # its sizes may be symbols
            seen = self._registry.read(value)
            words.append(seen[0] << 1 | value.requires_grad)
            return seen[2]
        if value is None or type(value) in PLAIN or depth == MAX_DEPTH:
            return None
        if isinstance(value, (tuple, list)):
            return tuple([self._describe(item, words, depth + 1) for item in value])
        if isinstance(value, dict):
            return Named(
                [(k, self._describe(v, words, depth + 1)) for k, v in value.items()]
            )
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return Named(
                (f.name, self._describe(getattr(value, f.name), words, depth + 1))
                for f in dataclasses.fields(value)
            )
        return None

    def intern(self, key: tuple[object, object, object]) -> int:
        """Return the number of a structure, described as arguments and output."""
        number = self._structure_by_key.get(key)
        if number is None:
            number = self._structure_by_key[key] = len(self.structures)
            args, kwargs, output = key
            inputs = (*flatten(args, ""), *flatten(kwargs, ""))
            self.structures.append((inputs, tuple(flatten(output, ""))))
        return number


class Named(tuple[tuple[str, object], ...]):
    """The description of a dict or a dataclass: pairs of a name and its value."""

    __slots__ = ()


def flatten(described: object, path: str) -> Iterator[tuple[str, Geometry]]:
    """Yield path and geometry of each tensor in a result of ``_describe``."""
    if isinstance(described, LiveGeometry):
        yield path, described.record
    elif isinstance(described, tuple):
        is_named = isinstance(described, Named)
        items = described if is_named else enumerate(described)
        for name, value in items:
            yield from flatten(value, f"{path}.{name}" if path else str(name))


OnOlder: TypeAlias = Callable[[nn.Module, tuple[object, ...]], Sequence[nn.Module]]


class ModuleCallRecorder:
    """The stack of running module calls, their rows, and the modules that were built.

    Attributes:
        word: The module word of an operator called now; see ``program.HEADER``.
        values: For each finished call its structure, then a word per tensor.
        while_built: The calls that came from the construction of a module.
        early_trees: Trees of modules built and called here, by the root's number, after
            their first call: a temporary one is gone at the end.
        registered: (module number, name, storage number) of each parameter registered.
        on_older_module: Called with each module that the block did not build, and its
            arguments; returns the modules for which it need not be called again.
    """

    def __init__(
        self,
        registry: TensorRegistry,
        clock: Clock,
        numbers: ModuleNumbers,
        sites: CallSites,
    ) -> None:
        self.word = 0
        self.entry: FrameType | None = None
        self.site: Site = (0, 0)
        self.is_in_backward = False
        self.rows = array("I")
        self._given = ModuleValues(registry)
        self.values, self.structures = self._given.words, self._given.structures
        self.while_built: list[int] = []
        self.while_in_backward: list[int] = []
        self.early_trees: dict[int, Tree] = {}
        self.registered: list[tuple[int, str, int]] = []
        self.threads: set[str] = set()
        self.on_older_module: OnOlder = lambda module, _: [module]
        self._registry = registry
        self._clock = clock
        self._numbers = numbers
        self._sites = sites
        self._seen: set[int] = set()  # ids of modules whose roots are kept alive
        self._stack: list[tuple[int, FrameType | None, Site, bool]] = []
        self._built: set[int] = set()
        self._described: set[int] = set()
        self._held: dict[int, nn.Module] = {}
        self._live: list[tuple[int, nn.Module]] = []
        self._thread = 0
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        self._live.clear()
        self._thread = threading.get_ident()
        self._handles = [
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(
                self._after, with_kwargs=True, always_call=True
            ),
            register_module_module_registration_hook(self._on_registered),
            register_module_buffer_registration_hook(self._on_registered),
            register_module_parameter_registration_hook(self._on_parameter),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        while self._handles:
            handle = self._handles.pop()
            handle.remove()
            hooks_with_kwargs.pop(handle.id, None)
        # Garbage that is collected later by chance counts as live at this moment.
        self._registry.note_deaths()
        self._live = self._numbers.live()

    @uninterrupted
    def _before(self, module: nn.Module, args: tuple[object, ...]) -> None:
        if threading.get_ident() != self._thread:
            self.threads.add(threading.current_thread().name)
            return
        frame = sys._getframe(1)
        number = self._numbers.of(module)
        if id(module) not in self._seen and number not in self._built:
            self._seen.update(map(id, self.on_older_module(module, args)))
        self._stack.append((self.word, self.entry, self.site, self.is_in_backward))
        position, line, _, owner = self._sites.walk(frame.f_back, self.entry, self.site)
        now = self._clock.now
        # Twice as fast as ``extend``.
        self.rows.fromlist([number, self.word >> 1, position, line, now, now, 0])
        n_rows = len(self.rows) // MODULE_HEADER
        if owner:
            self.while_built.append(n_rows - 1)
        self.word = n_rows << 1
        self.site = position, line
        self.entry = frame
        self.is_in_backward = current_autograd_node() is not None
        if self.is_in_backward:
            self.while_in_backward.append((self.word >> 1) - 1)

    @uninterrupted
    def _after(self, module: nn.Module, args: tuple[object, ...], *rest: Any) -> None:
        if threading.get_ident() != self._thread or not self._stack:
            return
        if tracing_state() is not None:  # sizes would be traced tensors
            with WithoutTracing():
                self._after(module, args, *rest)
            return
        # After an exception torch calls this hook without the keyword arguments.
        *kwargs, output = rest
        if self._registry.freed:
            self._registry.note_deaths()
        row = ((self.word >> 1) - 1) * MODULE_HEADER
        self.rows[row + 6] = self._given.append(args, kwargs and kwargs[0], output)
        self.rows[row + 5] = self._clock.now
        self.word, self.entry, self.site, self.is_in_backward = self._stack.pop()
        if not self.word:
            self._keep_root(module, row // MODULE_HEADER)

    def _keep_root(self, module: nn.Module, call: int) -> None:
        """Describe the tree of a module after its first call: it may be gone later.

        That is the whole model where a function calls its parts one by one, but not
        while its ``__init__`` runs, as other parts may come.
        """
        number = self._numbers.of(module)
        if number not in self._built:
            self._held[number] = module
        elif number not in self._described:
            is_whole = call not in self.while_built
            if is_whole:
                live = self._numbers.live()
                module = find_root(module, [m for n, m in live if n in self._built])
            tree = describe_columns(self._registry, self._numbers, walk_tree(module))
            self.early_trees.setdefault(tree.number, tree)
            if is_whole:
                self._described.update(tree.fqn_by_module)

    def close_open_calls(self) -> None:
        """End the calls that an error interrupted, with an empty structure."""
        n_values = self._given.append_words([self._given.intern(((), None, ()))])
        while self.word:
            row = ((self.word >> 1) - 1) * MODULE_HEADER
            self.rows[row + 5] = self._clock.now
            self.rows[row + 6] = n_values
            self.word, self.entry, self.site, _ = self._stack.pop()

    def extend_last(self, module: nn.Module) -> int:
        """Add an operator to the last call of a module; return its module word."""
        number, rows = self._numbers.of(module), self.rows
        starts = range(0, len(rows), MODULE_HEADER)
        last = max((start for start in starts if rows[start] == number), default=None)
        if last is None:
            return 0
        call = word = last // MODULE_HEADER + 1
        while call:
            start = (call - 1) * MODULE_HEADER
            rows[start + 5] += 1
            call = rows[start + 1]
        return word << 1

    def calls_by_module(self) -> dict[int, tuple[int | None, int]]:
        """Return first call and number of calls of each module called."""
        numbers = self.rows[::MODULE_HEADER]
        counts = Counter(numbers)
        pairs = [*enumerate(numbers)][::-1]
        first_calls = {number: call for call, number in pairs}
        return {number: (first_calls[number], n) for number, n in counts.items()}

    def close(self) -> None:
        """Drop all modules and frames."""
        self._held.clear()
        self._live.clear()
        self._stack.clear()
        self.entry = None

    def _on_registered(self, module: nn.Module, _name: str, value: object) -> None:
        if threading.get_ident() == self._thread:
            self._built.add(self._numbers.of(module))
            if isinstance(value, nn.Module):
                self._numbers.of(value)

    def _on_parameter(self, module: nn.Module, name: str, value: object) -> None:
        if threading.get_ident() == self._thread and isinstance(value, nn.Parameter):
            if self._registry.freed:
                self._registry.note_deaths()
            with DisableTorchFunction():
                is_plain = type(value) is nn.Parameter  # spares most a call
                local = value if is_plain else local_of(value)
                storage = self._registry.storage_of(local)
            if storage is not None:
                number = self._numbers.of(module)
                self._built.add(number)
                self.registered.append((number, name, storage.number))
