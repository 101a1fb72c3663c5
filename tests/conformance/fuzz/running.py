"""Programs run for real and recorded, and what can be compared of each run."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import meta_magic as mm
from meta_magic.recording.identities import generator_carryover
from tests.conformance.exactness import generator_states
from tests.conformance.fuzz.programs import Program
from tests.conformance.fuzz.scope import has_lost_its_history
from tests.conformance.fuzz.surroundings import surroundings
from tests.conformance.model_runs import Made

Ask: TypeAlias = Callable[["Run"], Any]

FILE = "<program>"
PLAIN = "if True:"
LOGGED = "with logs.setdefault({n}, Log()):"
RECORDED = 'with mm.record(as_device="cpu", cache={cache}) as trace_{n}:'


class Error(NamedTuple):
    """What a program raised: class, text, and the line of its source."""

    name: str
    text: str
    line: int


COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
COUNTING = torch._C.DispatchKey.ADInplaceOrView


def is_composite(func: torch._ops.OpOverload) -> bool:
    """Whether an operator is made of others on every device."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), COMPOSITE)


def is_inference(arguments: Any) -> bool:
    """Whether autograd is off for a call, by the mode or by its tensors."""
    return torch.is_inference_mode_enabled() or any(
        tensor.is_inference()
        for tensor in tree_leaves(arguments)
        if isinstance(tensor, Tensor)
    )


class Log(TorchDispatchMode):
    """Notes what operators return."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Made] = []
        self._is_below_autograd = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        before = self._is_below_autograd
        if is_composite(func) and (before or is_inference((args, kwargs))):
            # Autograd, which is off, would have taken it apart before, above what
            # counts writes.
            self._is_below_autograd = True
            try:
                with self, torch._C._SetExcludeDispatchKeyGuard(COUNTING, False):
                    return func._op_dk(COMPOSITE, *args, **kwargs)
            finally:
                self._is_below_autograd = before
        returned = func(*args, **kwargs)
        tensors = [t for t in tree_leaves(returned) if isinstance(t, Tensor)]
        if is_moving_to_shared_memory():
            return returned
        metadata = [(tuple(t.shape), t.dtype) for t in tensors]
        strides = [t.stride() if t.layout is torch.strided else None for t in tensors]
        self.made.append(Made(str(func), metadata, strides))
        return returned


def is_moving_to_shared_memory() -> bool:
    """Whether torch copies a storage, by operators that are no part of a program."""
    return sys._getframe(4).f_code.co_name.startswith("_share_")


@dataclass(slots=True)
class Run:
    """One run of a program, and what it left.

    Attributes:
        program: What ran.
        namespace: Its variables.
        error: What it raised, or None.
        logs: What each cell's operators returned, in a real run.
        generators: Where the generators stood after it, its own included.
        asked: What was asked of it at its end returned, or raised.
    """

    program: Program
    namespace: dict[str, Any]
    error: Error | None = None
    logs: dict[int, Log] = field(default_factory=dict)
    generators: dict[str, Any] = field(default_factory=dict)
    asked: Any = None

    @property
    def traces(self) -> dict[int, mm.Trace]:
        """The trace of each cell."""
        named = (n for n in self.namespace if n.startswith("trace_"))
        return {int(name[6:]): self.namespace[name] for name in named}

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that the variables hold, by an expression for each."""
        found: dict[str, Tensor] = {}
        for name, value in self.namespace.items():
            if not name.startswith("_"):
                found |= find_tensors(name, value)
        return found

    def values(self) -> dict[str, str]:
        """Return the variables that are plain values, as text."""
        return {
            name: repr(value)
            for name, value in self.namespace.items()
            if name[0] == "v" and name[1:].isdigit() and not isinstance(value, Tensor)
            if "object at" not in repr(value)
        }

    def remember_generators(self) -> None:
        """Note where the generators stand now."""
        self.generators = generator_states() | {
            name: value.get_state().numpy().tobytes()
            for name, value in self.namespace.items()
            if isinstance(value, torch.Generator)
        }


def find_tensors(name: str, value: Any) -> dict[str, Tensor]:
    """Return the tensors of a variable: itself, its gradient, those of a module."""
    if isinstance(value, Tensor):
        if is_lazy(value) or has_lost_its_history(value):
            return {}
        has_grad = value.is_leaf and value.grad is not None
        return {name: value} | ({f"{name}.grad": value.grad} if has_grad else {})
    if isinstance(value, nn.Module):
        return find_module_tensors(name, value)
    if isinstance(value, torch.optim.Optimizer):
        states = enumerate(value.state.values())
        return {
            f"{name}[{n}].{key}": tensor
            for n, state in states
            for key, tensor in sorted(state.items())
            if isinstance(tensor, Tensor)
        }
    return {}


def find_module_tensors(name: str, module: nn.Module) -> dict[str, Tensor]:
    """Return a module's parameters, their gradients, and buffers."""
    found: dict[str, Tensor] = {}
    for key, parameter in module.named_parameters(name, remove_duplicate=False):
        found |= find_tensors(key, parameter)
    return found | dict(module.named_buffers(name, remove_duplicate=False))


def run(program: Program, opening: str, ask: Ask | None = None, **names: Any) -> Run:
    """Run a program from the same state each time, then ask something of it."""
    namespace: dict[str, Any] = dict(names)
    made = Run(program, namespace, logs=names.get("logs", {}))
    with surroundings(program.seed):
        code = compile(program.source(opening), FILE, "exec")
        try:
            exec(code, namespace)
        except Exception as error:
            made.error = describe(error)
        if ask is not None and made.error is None:
            try:
                made.asked = ask(made)
            except Exception as error:
                made.asked = error
        made.remember_generators()
    return made


def run_plain(program: Program) -> Run:
    """Run a program for real, as a user would."""
    return run(program, PLAIN)


def run_real(program: Program) -> Run:
    """Run a program for real, and note what its operators return."""
    return run(program, LOGGED, logs={}, Log=Log)


def run_recorded(program: Program, ask: Ask | None = None, *, cache: bool) -> Run:
    """Run a program with its cells recorded, as the first of a session."""
    generator_carryover.kept.clear()
    generator_carryover.forgotten.clear()
    return run(program, RECORDED.replace("{cache}", str(cache)), ask)


def describe(error: Exception) -> Error:
    """Return what was raised, and by which line of the program."""
    line, traceback = 0, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == FILE:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return Error(type(error).__name__, " ".join(str(error).split())[:200], line)
