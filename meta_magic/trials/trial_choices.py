"""Choices that change what a block costs: dtypes, checkpointing, other optimizers.

``trace.fit("H100", choices=["checkpointing", "8-bit"])`` asks about a training step
whose code has neither. A choice patches torch in the child that runs the block again
(:func:`make_choices`): the answer is what torch then does, and no rule of thumb. The
child ends after its trial, so nothing is restored. :data:`CHOICES` lists all choices.

``accumulation:batch/4`` lets a batch come in four parts. The user's code has no loop
for that, so :func:`accumulate` writes one into the block's syntax tree.
"""

import ast
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from fnmatch import fnmatchcase
from functools import partial, wraps
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from meta_magic.errors import TrialError
from meta_magic.torch_private.distributed import local_of
from meta_magic.trials.blocks import SCOPES

BLOCK: Final = 256
"""Numbers that share a scale."""

LEAST: Final = 4096
"""Parameters with fewer numbers keep states of 32 bits."""


class PackedAdam(Optimizer):
    """Adam with states of 8 bits, quantized by blocks; one kernel for each parameter.

    It needs the memory of the real one; its values are wrong, but no trial reads them.

    Source:
        bitsandbytes' ``Adam8bit``: two states of one byte for each number, with a scale
        of 32 bits for 256 numbers, and of 32 bits below 4,096 numbers.
    """

    def __init__(self, params: Iterable[Any], *, is_paged: bool = False) -> None:
        super().__init__(params, {})
        self._is_paged = is_paged

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update all parameters that have a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    if not self.state[parameter]:
                        self.state[parameter] = self._make_state(local_of(parameter))
                    parameter.sub_(parameter.grad)
        return loss

    def _make_state(self, parameter: Tensor) -> dict[str, Tensor]:
        is_packed = parameter.numel() >= LEAST
        dtype = torch.uint8 if is_packed else torch.float32
        sizes = {"exp_avg": parameter.numel(), "exp_avg_sq": parameter.numel()}
        state = {name: self._make(parameter, n, dtype) for name, n in sizes.items()}
        for name, n in sizes.items() if is_packed else ():
            scales = self._make(parameter, -(-n // BLOCK), torch.float32)
            state[f"scales of {name}"] = scales
        return state

    def _make(self, parameter: Tensor, n: int, dtype: torch.dtype) -> Tensor:
        if self._is_paged:  # on the CPU, as what no device is named for
            return torch.zeros(n, dtype=dtype)
        return parameter.new_zeros(n, dtype=dtype)


MAX_NAMED: Final = 12
"""How many classes of modules a message names."""


def _checkpoint_modules(pattern: str) -> Callable[[], str | None]:
    """Checkpoint modules, as ``torch.utils.checkpoint`` does, in code that does not.

    Args:
        pattern: ``fnmatch`` pattern of the names of modules within the module that is
            called first, or of the names of their classes; "" for repeated blocks. A
            module inside of a checkpointed one is not checkpointed again.

    Returns:
        A function that returns, after the block ran, why no module was checkpointed.
    """
    call = nn.Module.__call__
    is_meant: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
    example_by_class: dict[str, str] = {}

    def classify(root: nn.Module) -> None:
        found = _find_matches(root, pattern) if pattern else _find_blocks(root)
        meant = {id(module) for module in found}
        for name, module in root.named_modules():
            is_meant[module] = id(module) in meant
            example_by_class.setdefault(type(module).__name__, name)

    @wraps(call)
    def call_checkpointed(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if module not in is_meant:  # a root: calls of what is in it come after
            classify(module)
            were_any.append(any(is_meant.values()))
        run = partial(call, module)
        if is_meant[module] and module.training and torch.is_grad_enabled():
            return checkpoint(run, *args, use_reentrant=False, **kwargs)
        return run(*args, **kwargs)

    def find_fault() -> str | None:
        return None if any(were_any) else _describe_others(pattern, example_by_class)

    were_any: list[bool] = []
    nn.Module.__call__ = call_checkpointed  # type: ignore[method-assign]  # on purpose
    return find_fault


def _find_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost blocks of a module.

    Blocks are modules of one class, with modules inside of them, that stand beside each
    other in a list or a sequence.
    """
    for child in module.children():
        kinds = [type(one) for one in child.children()]
        is_row = isinstance(child, (nn.ModuleList, nn.Sequential))
        blocks = [
            one
            for one in child.children()
            if is_row and kinds.count(type(one)) > 1 and any(one.children())
        ]
        yield from blocks
        if not blocks:
            yield from _find_blocks(child)


def _find_matches(root: nn.Module, pattern: str) -> Iterator[nn.Module]:
    """Yield the outermost modules whose name or class matches a pattern."""
    if fnmatchcase(type(root).__name__, pattern):
        yield root
        return
    within: str | None = None
    for name, module in root.named_modules():  # what holds others comes before them
        if not name or (within is not None and name.startswith(within)):
            continue
        if fnmatchcase(name, pattern) or fnmatchcase(type(module).__name__, pattern):
            within = f"{name}."
            yield module


def _describe_others(pattern: str, example_by_class: dict[str, str]) -> str:
    """Return that no module was checkpointed, and which modules could be."""
    if not example_by_class:
        return "has no module to checkpoint: it calls none"
    others = [
        f"{kind} ({name})" if name else kind for kind, name in example_by_class.items()
    ]
    more = ", ..." if len(others) > MAX_NAMED else ""
    what = f"that {pattern!r} names" if pattern else "in a row of its kind"
    hint = "" if pattern else "; name some, as checkpointing:PATTERN does"
    known = ", ".join(others[:MAX_NAMED])
    return f"has no module {what} among {known}{more}{hint}"


Choice: TypeAlias = str | AbstractContextManager[object]
"""One of :data:`CHOICES` as it is written, or a context that the block runs in."""

Fault: TypeAlias = Callable[[], str | None]
"""Returns, after the block ran, why a choice changed nothing; None if it did."""


class ChoiceKind(NamedTuple):
    """A kind of choice.

    Attributes:
        make: Patches torch, given the text after the colon ("" for none) and the type
            of the device; may return a :data:`Fault`.
        argument: The name of what is written after the colon; "" if nothing may be.
    """

    make: Callable[[str, str], Fault | None]
    argument: str = ""


def make_choices(
    choices: Iterable[Choice], device: str, faults: list[Fault]
) -> ExitStack:
    """Patch torch for each written choice; return the context that the block runs in.

    Accumulation is skipped: it changes the block's text. ``faults`` gets functions to
    call after the block ran.
    """
    stack = ExitStack()
    for choice in choices:
        if not isinstance(choice, str):
            stack.enter_context(choice)
            continue
        name, _, argument = choice.partition(":")
        fault = CHOICES[name].make(argument, device) if name in CHOICES else None
        faults += [] if fault is None else [fault]
    return stack


def check_choices(choices: Iterable[Choice]) -> None:
    """Raise an error that lists all choices if one is not known."""
    for choice in choices:
        if not isinstance(choice, str):
            continue
        name, _, argument = choice.partition(":")
        known = name in CHOICES and (CHOICES[name].argument or not argument)
        if not known and name != ACCUMULATION:
            texts = [
                text
                for one, kind in CHOICES.items()
                for text in (one, *([f"{one}:{kind.argument}"] * bool(kind.argument)))
            ]
            listed = ", ".join([*texts, f"{ACCUMULATION}:SIZE/PARTS"])
            raise TrialError(f"{choice!r} is no choice known; these are: {listed}")


def _use_autocast(_: str, device: str) -> None:
    torch.autocast(device, torch.bfloat16).__enter__()


def _fuse_optimizers(*_: str) -> None:
    """Have optimizers step in one kernel, without temporaries, where torch has one."""

    def fuse(init: Callable[..., None]) -> Callable[..., None]:
        @wraps(init)
        def init_fused(*args: Any, **kwargs: Any) -> None:
            init(*args, **kwargs | {"fused": True, "foreach": False})

        return init_fused

    for kind in _list_optimizers():
        if "fused" in inspect.signature(kind).parameters:
            kind.__init__ = fuse(kind.__init__)  # type: ignore[method-assign]  # on purpose


def _replace_optimizers(make: Callable[..., Optimizer], kinds: set[type]) -> None:
    """Construct another optimizer whenever the block constructs one of some kinds."""
    is_making = False

    def make_other(kind: type, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_making
        if is_making or kind not in kinds:
            return object.__new__(kind)
        is_making = True
        try:
            return make(kind, *args, **kwargs)
        finally:
            is_making = False

    for kind in kinds:
        kind.__new__ = make_other  # type: ignore[method-assign,assignment]  # on purpose


def _use_optimizer(optimizer: type[Optimizer], **options: Any) -> None:
    """Construct an optimizer of one kind in place of all but SGD."""

    def make(_: type, params: Any, *__: Any, **___: Any) -> Optimizer:
        return optimizer(params, **options)

    _replace_optimizers(make, {*_list_optimizers()} - {torch.optim.SGD})


def _shard_optimizers(*_: str) -> None:
    """Have each rank hold a part of the optimizer state, as ZeRO does."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: PLC0415  not in each build

    def shard(kind: type, params: Any, *args: Any, **kwargs: Any) -> Optimizer:
        given = dict(zip(("lr",), args, strict=False)) | kwargs
        return ZeroRedundancyOptimizer(params, optimizer_class=kind, **given)

    _replace_optimizers(shard, {*_list_optimizers()})


def _replace_fully_shard(make: Callable[[Any], Any]) -> None:
    """Have ``fully_shard``, by whatever name, do what ``make`` makes of it."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415  not in each build

    shard: Any = fully_shard
    for cell in shard.__closure__:  # its wrapper's, which calls the function in a cell
        if cell.cell_contents is shard.__wrapped__:
            cell.cell_contents = make(cell.cell_contents)


def _shard_roots(*_: str) -> None:
    """Shard the whole of each model of which modules are sharded, before it is used."""
    options: list[dict[str, Any]] = []
    sharded = WeakSet[nn.Module]()

    def replace(shard: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(shard)
        def shard_noted(module: Any, *args: Any, **kwargs: Any) -> Any:
            sharded.update([module] if isinstance(module, nn.Module) else module)
            options[:] = [kwargs]
            return shard(module, *args, **kwargs)

        return shard_noted

    def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def use(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if module not in sharded and any(m in sharded for m in module.modules()):
                fully_shard(module, **options[-1])
            return method(module, *args, **kwargs)

        return use

    _replace_fully_shard(replace)
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415  as above

    # ``fully_shard`` itself asks for named parameters.
    for name in ("__call__", "parameters"):
        setattr(nn.Module, name, wrap(getattr(nn.Module, name)))


def _shard_coarsely(*_: str) -> None:
    """Leave modules without modules of their own to what is sharded around them."""

    def replace(shard: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(shard)
        def shard_others(module: Any, *args: Any, **kwargs: Any) -> Any:
            is_one = isinstance(module, nn.Module)
            if is_one and not any(True for _ in module.children()):
                return module
            return shard(module, *args, **kwargs)

        return shard_others

    _replace_fully_shard(replace)


def _list_optimizers() -> list[type[Optimizer]]:
    found = vars(torch.optim).values()
    return [
        kind
        for kind in found
        if isinstance(kind, type) and issubclass(kind, Optimizer) and kind != Optimizer
    ]


CHOICES: Final[Mapping[str, ChoiceKind]] = {
    "bfloat16": ChoiceKind(lambda *_: torch.set_default_dtype(torch.bfloat16)),
    "autocast": ChoiceKind(_use_autocast),
    "checkpointing": ChoiceKind(lambda p, _: _checkpoint_modules(p), "PATTERN"),
    "fused": ChoiceKind(_fuse_optimizers),
    "sgd": ChoiceKind(lambda *_: _use_optimizer(torch.optim.SGD, lr=1e-3)),
    "8-bit": ChoiceKind(lambda *_: _use_optimizer(PackedAdam)),
    "paged 8-bit": ChoiceKind(lambda *_: _use_optimizer(PackedAdam, is_paged=True)),
    "zero": ChoiceKind(_shard_optimizers),
    "sharded root": ChoiceKind(_shard_roots),
    "coarser shards": ChoiceKind(_shard_coarsely),
}
"""All choices but accumulation, by name."""


ACCUMULATION: Final = "accumulation"


class Parts(NamedTuple):
    """Into how many parts a batch is split.

    Attributes:
        name: The block's name for the size of the batch.
    """

    name: str
    number: int

    def __str__(self) -> str:
        return f"{ACCUMULATION}:{self.name}/{self.number}"


def read_parts(choices: Collection[object], name: str = "") -> Parts | None:
    """Return how choices split a batch (``name`` if they do not say), or None."""
    texts = [choice for choice in choices if isinstance(choice, str)]
    found = [choice for choice in texts if _is_accumulation(choice)]
    if not found:
        return None
    argument = found[0].partition(":")[2]
    size, _, number = argument.rpartition("/")
    size = size or name
    if len(found) > 1 or not size or not number.isdecimal() or int(number) < 1:
        raise TrialError(
            f"cannot read {found[-1]!r}: write one size and its number of parts, such "
            f"as '{ACCUMULATION}:batch/4'"
        )
    return Parts(size, int(number))


def name_parts(choices: Iterable[str], vary: Iterable[str]) -> tuple[str, ...]:
    """Return choices in which ``accumulation:4`` names the only size that varies."""
    chosen, names = tuple(choices), tuple(vary)
    parts = read_parts(chosen, names[0] if len(names) == 1 else "")
    return tuple(str(parts) if _is_accumulation(one) else one for one in chosen)


def count_parts(choices: Collection[str], name: str) -> int:
    """Return into how many parts choices split a size."""
    parts = read_parts(choices)
    return parts.number if parts is not None and parts.name == name else 1


def _is_accumulation(choice: str) -> bool:
    return choice.partition(":")[0] == ACCUMULATION


def accumulate(block: ast.Module, parts: Parts) -> frozenset[str]:
    """Put a loop over the parts of a batch into a block; return the names bound in it.

    The loop has the statement that calls ``backward()``, and of the statements before
    it in the same body those that depend on the size. A name depends on all names in
    the expression that is assigned to it. All other statements run once. The block is
    changed; the caller sets the size to that of one part.
    """
    row, at = _find_backward(block)
    dependent = _find_dependent(block, parts.name)
    repeated = [one for one in row[:at] if _read_names(ast.walk(one)) & dependent]
    bound = frozenset(_bind_names(node for one in repeated for node in ast.walk(one)))
    reason = _find_obstacle(row[at], dependent, bound)
    if reason is not None:
        raise TrialError(
            f"gradients cannot be accumulated: {reason} what is computed from "
            f"{parts.name!r} right before the backward() of line {row[at].lineno}"
        )
    loop = ast.For(
        target=ast.Name("__part", ast.Store()),
        iter=ast.parse(f"range({parts.number})", mode="eval").body,
        body=[*repeated, row[at]],
        orelse=[],
    )
    ast.copy_location(loop, row[at])
    row[: at + 1] = [*(one for one in row[:at] if one not in repeated), loop]
    return bound


def _find_obstacle(
    backward: ast.stmt, dependent: Collection[str], bound: Collection[str]
) -> str | None:
    """Return why a statement cannot be repeated, or None."""
    if _read_names(_walk_own(backward)).isdisjoint(dependent):
        return "it does not take"
    losses = [name for name in _read_losses(backward) if name in dependent]
    if losses and losses[0] not in bound:
        return f"{losses[0]!r} is not"
    return None


def find_remade(bound: Collection[str], variables: Mapping[str, Any]) -> str | None:
    """Return why parts accumulate nothing: each makes a module or an optimizer."""
    for name in sorted(bound):
        if isinstance(variables.get(name), (nn.Module, Optimizer)):
            return (
                f"accumulates no gradients: {name!r} depends on the size, so each part "
                "makes a new one"
            )
    return None


def _find_backward(block: ast.Module) -> tuple[list[ast.stmt], int]:
    """Return the statements that include the call of ``backward()``, and its index."""
    found = [
        (row, at)
        for row in _walk_bodies(block)
        for at, statement in enumerate(row)
        if any(True for _ in _find_backward_calls(statement))
    ]
    if len(found) == 1:
        return found[0]
    why = "no statement of the block itself calls backward(), only what it calls may"
    if found:
        lines = ", ".join(str(row[at].lineno) for row, at in found)
        why = f"backward() is called at several lines, {lines}"
    raise TrialError(f"gradients cannot be accumulated: {why}")


def _find_backward_calls(statement: ast.stmt) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Yield the calls of ``backward()`` in a statement itself, with their receivers."""
    for node in _walk_own(statement):
        if isinstance(node, ast.Call):
            of = node.func
            if isinstance(of, ast.Attribute) and of.attr == "backward":
                yield node, of.value


def _read_losses(statement: ast.stmt) -> Iterator[str]:
    """Yield the names whose ``backward()`` a statement calls, or that it takes."""
    for call, receiver in _find_backward_calls(statement):
        for loss in (receiver, *call.args[:1]):  # or accelerator.backward(loss)
            if isinstance(loss, ast.Name):
                yield loss.id


def _find_dependent(block: ast.Module, name: str) -> set[str]:
    """Return the names that depend on one, including that one."""
    flows = [_read_flow(one) for row in _walk_bodies(block) for one in row]
    dependent, n_before = {name}, 0
    while len(dependent) > n_before:
        n_before = len(dependent)
        for read, bound in flows:
            if not read.isdisjoint(dependent):
                dependent |= bound
    return dependent


def _read_flow(statement: ast.stmt) -> tuple[set[str], set[str]]:
    """Return the names that a statement reads, and the names that it binds from them.

    Of a compound statement only its head counts, of a function or class its whole body.
    """
    if isinstance(statement, SCOPES):
        return _read_names(ast.walk(statement)), {statement.name}
    nodes = list(_walk_own(statement))
    return _read_names(nodes), _bind_names(nodes)


def _read_names(nodes: Iterable[ast.AST]) -> set[str]:
    names = (node for node in nodes if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Load)}


def _bind_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that are bound, or whose items or attributes are."""
    names = set()
    for node in nodes:
        is_bound, target = isinstance(getattr(node, "ctx", None), ast.Store), node
        while isinstance(target, (ast.Attribute, ast.Subscript)):
            target = target.value
        if is_bound and isinstance(target, ast.Name):
            names.add(target.id)
    return names


def _walk_bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements in a node; those of functions and classes not."""
    for _, value in ast.iter_fields(node):
        items = value if isinstance(value, list) else []
        if items and isinstance(items[0], ast.stmt):
            yield items
        for item in items:
            if isinstance(item, ast.AST) and not isinstance(item, SCOPES):
                yield from _walk_bodies(item)


def _walk_own(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield a statement and its expressions, without the statements inside of it."""
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        yield node
        todo += [
            child
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case))
        ]
