"""Generators of planned devices, and the seeds and states of all generators.

Without this ``torch.Generator("cuda")`` would fail without a GPU. A generator of a
planned device draws on the CPU, and ``generator.device`` returns the planned device.

Nothing is drawn while a cell runs, so a generator's state only holds a token, the
number of a draw. ``fork_rng`` and checkpointing save and restore the state, and need no
more than the token. The user's code may print or save the state; then
:class:`GeneratorStates` makes the draws, and ``get_state()`` returns the state that a
real run would have. A state that a cell loads from a file is on meta; ``set_state``
gets its values.
"""

import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.recording.identities.generator_carryover import (
    is_named,
    is_on_cpu,
    name_generator,
    planned_device_of,
)
from meta_magic.recording.intercept.planned.gpu_types import (
    do_nothing,
    find_index,
    find_plan,
)
from meta_magic.recording.intercept.value_checks import ValueSource
from meta_magic.recording.rows.written import OfRecording, Written
from meta_magic.torch_private.backend_flags import has_gpu
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.torch_private.replaced import GENERATOR, Replaceable
from meta_magic.torch_private.replacing import Methods, Replacements
from meta_magic.trace.program import ELSEWHERE

PLAIN = torch.Generator


class GeneratorKind(type(torch.Generator)):  # type: ignore[misc]  # torch has one of its own
    """Makes every generator an instance of the replacement of ``torch.Generator``."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, PLAIN)


class Generator(torch.Generator, metaclass=GeneratorKind):
    """A generator; for a planned device a generator of the CPU."""

    def __new__(cls, device: Any = "cpu") -> Any:
        """Make torch's own generator, or one of this class for a planned device.

        Torch's own if possible: for another class C++ asks Python for the type, and an
        interrupt at that moment would count as the answer.
        """
        plan = find_plan()
        device = torch.device(device) if plan is None else plan.read(device)
        if is_there(device):
            return PLAIN(device)
        if device.type in ("cpu", "meta"):
            return PLAIN("cpu")
        make: Any = super().__new__
        made = make(cls, "cpu")
        name_generator(made, device)
        return made

    __module__ = "torch"

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # torch has an attribute
        """The planned device."""
        return planned_device_of(self)


def is_there(device: torch.device) -> bool:
    """Whether this machine has a GPU."""
    is_known = device.type == "cuda" and has_gpu()
    return is_known and device.index < torch.cuda.device_count()


KIND_BY_SEEDING: Final[dict[Replaceable, str]] = {
    (torch.cuda, "manual_seed_all"): "cuda",
    (torch.xpu, "manual_seed_all"): "xpu",
    (torch.mps, "manual_seed"): "mps",
    (torch.mtia, "manual_seed_all"): "mtia",
}
"""Functions that ``torch.manual_seed`` calls, and the kinds of device they seed."""


class PlannedGenerators(OfRecording):
    """Makes generators accept planned devices, and ``manual_seed`` seed these."""

    def __enter__(self) -> None:
        if not self._plan.is_real:
            self.replace(torch, "Generator", Generator)
            for (owner, name), kind in KIND_BY_SEEDING.items():
                self.replace_here(owner, {name: partial(self._seed, kind)})

    def _seed(self, kind: str, plain: Callable[[int], None], seed: int) -> None:
        plain(seed)
        self._write.draws.seed_elsewhere(kind, int(seed))


class PlannedSeeds:
    """Replacements of ``torch.cuda.manual_seed`` and its like."""

    def __init__(self, write: Written) -> None:
        self._plan, self._draws = write.plan, write.draws

    def list_replacements(self) -> dict[str, Callable[..., Any]]:
        """Return the replacement of each function by its name."""
        return {
            "manual_seed": self._seed,
            "manual_seed_all": do_nothing,
            "initial_seed": lambda: self._find().initial_seed() ^ ELSEWHERE,
            "get_rng_state": self._get,
            "set_rng_state": self._set,
            "get_rng_state_all": lambda: [
                self._get(i) for i in range(self._plan.n_accelerators or 1)
            ],
            "set_rng_state_all": self._set_all,
        }

    def _read(self, device: Any = None) -> torch.device:
        is_named = device not in ("cuda", None)
        index = find_index(self._plan, device if is_named else None)
        return torch.device("cuda", index)

    def _find(self, device: Any = None) -> torch.Generator:
        return self._draws.generator_at(self._read(device))

    def _seed(self, seed: int) -> None:
        self._draws.seed_at(self._read(), int(seed))

    def _get(self, device: Any = None) -> Tensor:
        with DisableTorchFunction(), DisableTorchDispatch():
            return self._find(device).get_state()

    def _set(self, state: Tensor, device: Any = None) -> None:
        with DisableTorchFunction(), DisableTorchDispatch():
            self._find(device).set_state(state)

    def _set_all(self, states: Iterable[Tensor]) -> None:
        for index, state in enumerate(states):
            self._set(state, index)


INNER: Final = frozenset({"torch", __name__.partition(".")[0]})
"""Packages that save and restore a state, and never read its bytes."""

GET_STATE: Final = torch.get_rng_state.__code__
HERE: Final = frozenset({__name__, Replacements.__module__})
"""Code, and modules, whose callers are asked instead."""

UNKNOWN: Final = (
    "torch.get_rng_state, or a generator's get_state, returned a state that can be set "
    "again, but whose bytes are not the CPU's: to make the draws before it takes too "
    "much (see --value-seconds)"
)


class GeneratorStates(OfRecording):
    """Moves a generator to the state of the CPU's before its state is returned."""

    def __init__(
        self,
        write: Written,
        values: ValueSource,
        compute: Callable[[list[Tensor], str], list[Tensor]],
    ) -> None:
        super().__init__(write)
        self._values = values
        self._compute = compute

    def __enter__(self) -> None:
        methods: Methods = {
            "get_state": self._get,
            "set_state": self._set,
            "__reduce__": self._reduce,
            "__setstate__": self._restore,
        }
        self.replace_here(GENERATOR, methods)

    def _get(
        self, plain: Callable[[torch.Generator], Tensor], generator: torch.Generator
    ) -> Tensor:
        frame: Any = sys._getframe(1)
        while frame.f_code is GET_STATE or frame.f_globals.get("__name__") in HERE:
            frame = frame.f_back
        caller = str(frame.f_globals.get("__name__"))
        if caller.partition(".")[0] not in INNER:
            self._advance(generator)
        return plain(generator)

    def _set(
        self, plain: Callable[..., Any], generator: torch.Generator, state: Any
    ) -> Any:
        return plain(generator, self._make_real(state))

    def _reduce(self, plain: Callable[..., Any], generator: torch.Generator) -> Any:
        self._advance(generator)
        return plain(generator)

    def _restore(
        self, plain: Callable[..., Any], generator: torch.Generator, held: Any
    ) -> Any:
        return plain(generator, (*map(self._make_real, held),))

    def _make_real(self, state: Any) -> Any:
        """Return a state that is real: of a state on meta, its values."""
        if isinstance(state, Tensor) and state.is_meta:
            (state,) = self._compute([state], "the state of a generator")
        return state

    def _advance(self, generator: torch.Generator) -> None:
        """Move a generator to the state that it has after all draws so far."""
        if is_named(generator) or not is_on_cpu(generator):
            return
        if not self._write.draws.settle(generator, self._values.state_at):
            self._note("draw", UNKNOWN)
            self._write.diagnostics.note_caveat(UNKNOWN)
