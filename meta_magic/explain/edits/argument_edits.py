"""Edits of calls and modules: common mistakes of people who use torch.

``nn.LSTM(4, 8)`` is given batches first and lacks ``batch_first=True``; a checkpoint
holds its states under ``"state_dict"``. The tables list what is often forgotten or
confused. A trial of each edit decides, so a table may be wide. Read
:func:`edit_arguments` and :func:`edit_modules`.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from itertools import combinations
from typing import Final

from meta_magic.explain.edits.program_text import (
    FACTORIES,
    Called,
    Edit,
    SourceText,
    Stretch,
    join_edits,
    mark_lossy,
    read_number,
)
from meta_magic.explain.edits.situations import Situation


def _by_name(*rows: tuple[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    """Return the rows' texts by each of the names before them."""
    found: dict[str, tuple[str, ...]] = {}
    for names, texts in rows:
        for name in names.split():
            found[name] = found.get(name, ()) + texts
    return found


CONVOLUTIONS: Final = "Conv1d Conv2d Conv3d conv1d conv2d conv3d"
POOLS: Final = "MaxPool1d MaxPool2d MaxPool3d AvgPool1d AvgPool2d max_pool2d avg_pool2d"
TRANSPOSED: Final = "ConvTranspose1d ConvTranspose2d ConvTranspose3d"
REDUCTIONS: Final = "mean sum max min amax amin norm std var prod argmax logsumexp"
RECURRENT: Final = "LSTM GRU RNN"
ATTENTION: Final = (
    "MultiheadAttention TransformerEncoderLayer TransformerDecoderLayer Transformer"
)

ARGUMENTS: Final = _by_name(
    (f"{RECURRENT} {ATTENTION}", ("batch_first=True",)),
    ("pack_padded_sequence pad_packed_sequence pad_sequence", ("batch_first=True",)),
    (CONVOLUTIONS, ("padding=1", 'padding="same"', "padding=2")),
    (POOLS, ("ceil_mode=True", "padding=1")),
    (TRANSPOSED, ("output_padding=1", "padding=1")),
    (REDUCTIONS, ("keepdim=True",)),
    ("cat stack concat softmax log_softmax", ("dim=1", "dim=-1", "dim=2")),
    ("Softmax LogSoftmax", ("dim=1", "dim=-1")),
    ("flatten", ("1",)),
)
"""Arguments that people forget, by function."""

DTYPES: Final = ("dtype=torch.float", "dtype=torch.long")
"""Those that people forget where they make data, if the error is about dtypes."""

DIMS: Final = frozenset(
    (
        *("cat", "stack", "concat", "softmax", "log_softmax", "mean", "sum", "argmax"),
        *("max", "min", "squeeze", "unsqueeze", "transpose", "flatten", "gather"),
        *("scatter", "scatter_", "index_select", "split", "chunk", "select", "narrow"),
        *("Softmax", "LogSoftmax", "Flatten", "cumsum", "size", "repeat_interleave"),
        *("movedim", "unbind", "swapaxes", "norm", "std", "var", "amax", "amin"),
        *("index_add_", "sort", "topk", "unfold"),
    )
)
"""Functions whose integers are dimensions."""

REFUSED_ARGUMENTS: Final = re.compile(
    r"keyword argument|combination of arguments|Expected one of cpu, cuda"
)
"""Part of messages about an argument that a function does not have, or no device."""

TORCH_NAMES: Final = {"axes": "dim", "size": "shape", "shape": "size"}
"""Names of arguments as other libraries have them, or other functions of torch."""

SUGGESTED: Final = re.compile(r"(\w+)=(True|False|None)\b")
"""An argument in a message, as in "You can pass `enforce_sorted=False`"."""

UNEQUAL: Final = "stack expects each tensor to be equal size"
PAD: Final = "torch.nn.utils.rnn.pad_sequence"
IF_MANY: Final = "if torch.is_tensor(one[0]) and one[0].dim() else torch.tensor(one)"
COLLATE: Final = "collate_fn=lambda items: {}"
COLLATED: Final = (
    COLLATE.format(f"{PAD}(items, batch_first=True)"),
    COLLATE.format(f"[{PAD}(one, batch_first=True) {IF_MANY} for one in zip(*items)]"),
)
"""Part of the message if the items of a batch differ in size, and what pads them."""

OF_ONE: Final = "more than 1 value per channel"
"""Part of the message of a norm that is given one value."""

OTHER_DIMS: Final = (1, 0, -1, 2)

REMOVED: Final = frozenset(
    (
        *("transpose", "permute", "t", "squeeze", "unsqueeze", "flatten", "mean"),
        *("sum",),
        *("contiguous", "detach", "long", "float", "int", "half", "double", "bool"),
        *("softmax", "argmax", "expand", "repeat", "swapaxes", "movedim", "item"),
        *("numpy", "to", "view", "reshape", "log_softmax", "sigmoid"),
    )
)
"""Methods that are often called where they should not be."""

INSTEAD: Final = _by_name(
    ("view", ("reshape",)),
    ("cat concat", ("stack",)),
    ("stack", ("cat",)),
    ("mm bmm dot", ("matmul",)),
    ("expand", ("repeat",)),
    ("hstack", ("vstack",)),
    ("vstack", ("hstack",)),
    ("BCELoss", ("BCEWithLogitsLoss", "CrossEntropyLoss")),
    ("NLLLoss2d", ("NLLLoss",)),
    ("pad_sequence", ("stack",)),
    ("squeeze_", ("squeeze",)),
)
"""Functions that are confused with each other."""

MODULES: Final = (
    *("BatchNorm", "Conv", "ConvTranspose", "MaxPool", "AvgPool", "Dropout"),
    *("AdaptiveAvgPool", "AdaptiveMaxPool", "InstanceNorm"),
)
"""Modules of one, two and three dimensions."""

FLAGS: Final = frozenset({"keepdim", "batch_first", "inplace", "bidirectional"})
ADD_COST, DIM_COST, DROP_COST, RENAME_COST = 0.6, 0.8, 0.8, 0.7
SURE_COST, COLLATE_COST = 0.1, -0.3
SWAP_COST, MIXED_COST, FREE_COST, FLAG_COST = 1.0, 0.5, 0.8, 1.0


def edit_arguments(situation: Situation) -> Iterator[Edit]:
    """Yield edits of calls; those near the failed call cost less."""
    program = situation.program
    for called in program.calls:
        far = situation.weigh(called.node)
        yield from _add_arguments(situation, called, far)
        yield from _replace_called(program, called, far)
        yield from _swap(situation, called, far)
        if called.node.lineno in situation.lines:
            yield from _turn_dims(situation, called, far)
            removed = _remove_method(program, called, far)
            if not situation.is_failed(called.node):
                yield from removed
            elif REFUSED_ARGUMENTS.search(situation.error):
                yield from _mend_arguments(situation, called.node)
            else:
                yield from mark_lossy(removed)
            yield from _free_sizes(program, called, far)


def _add_arguments(situation: Situation, called: Called, far: float) -> Iterator[Edit]:
    """Yield edits that add an argument, pass on a parameter, or turn a flag."""
    program, error = situation.program, situation.error
    given = {keyword.arg for keyword in called.node.keywords}
    texts = ARGUMENTS.get(called.name, ())
    if situation.is_of_dtypes and called.name in FACTORIES:
        has_fractions = any(map(is_fraction, ast.walk(called.node)))
        texts += DTYPES[:1] if has_fractions else DTYPES
    if called.name == "DataLoader" and (OF_ONE in error or UNEQUAL in error):
        texts = ("drop_last=True",) if OF_ONE in error else COLLATED
    suggested = SUGGESTED.search(error)
    if suggested and called.name in error:
        texts = (suggested[0], *texts)
    for at, text in enumerate(texts):
        name = text.partition("=")[0]
        if name not in given and not _is_given(program, called, name):
            cost = (COLLATE_COST if text in COLLATED else ADD_COST + far) + 0.2 * at
            yield from program.add_argument(called.node, text, cost)
    for keyword in called.node.keywords:
        value = keyword.value
        if keyword.arg in FLAGS and isinstance(value, ast.Constant):
            other = str(not value.value)
            is_named = keyword.arg in error.replace("-", "")
            cost = (SURE_COST if is_named and value.value else FLAG_COST) + far
            yield from program.replace(value, other, cost)


def _mend_arguments(situation: Situation, node: ast.Call) -> Iterator[Edit]:
    """Yield edits of an argument that a function does not have, or of a device."""
    program = situation.program
    for value in (*node.args, *(keyword.value for keyword in node.keywords)):
        if isinstance(value, ast.Constant) and value.value == "gpu":
            yield from program.replace(value, repr("cuda"), SURE_COST)
    for keyword in node.keywords:
        if keyword.arg and keyword.arg in situation.error:
            if keyword.arg in TORCH_NAMES:
                text = f"{TORCH_NAMES[keyword.arg]}={program.read(keyword.value)}"
                yield from program.replace(keyword, text, SURE_COST)
            others = [one for one in node.keywords if one is not keyword]
            left = ast.unparse(ast.Call(node.func, node.args, others))
            yield from mark_lossy(program.replace(node, left, DROP_COST))


def is_fraction(node: ast.AST) -> bool:
    """Whether a node is a number that a cast to integers would change."""
    value = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, float) and value != int(value)


def _is_given(program: SourceText, called: Called, name: str) -> bool:
    """Whether a call has a dimension already, by position."""
    owner = None if called.owner is None else ast.unparse(called.owner)
    n_given = len(called.node.args)
    if called.name in DIMS and owner == "self":  # a module
        return True
    is_function = owner is None or owner.partition(".")[0] in program.imported
    return name in {"1", "dim"} and n_given > is_function


def _turn_dims(situation: Situation, called: Called, far: float) -> Iterator[Edit]:
    if called.name not in DIMS:
        return
    program = situation.program
    is_out = "Dimension out of range" in situation.error
    cost = far + (
        SURE_COST if is_out and situation.is_failed(called.node) else DIM_COST
    )
    given = [*called.node.args, *(keyword.value for keyword in called.node.keywords)]
    for node in given:
        value = read_number(node)
        for at, dim in enumerate(OTHER_DIMS if value is not None else ()):
            if dim != value:
                yield from program.replace(node, str(dim), cost + 0.1 * at)


def _remove_method(program: SourceText, called: Called, far: float) -> Iterator[Edit]:
    if called.owner is not None and called.name in REMOVED:
        node = called.node
        if node.lineno == node.end_lineno:
            text = program.read(called.owner)
            is_module = text in {"torch", "F", "np", "nn.functional"}
            kept = program.read(node.args[0]) if is_module else text
            yield from program.replace(node, kept, DROP_COST + far)


def _replace_called(program: SourceText, called: Called, far: float) -> Iterator[Edit]:
    """Yield edits that call a function which is often confused with this one."""
    for other in INSTEAD.get(called.name, ()):
        yield from program.rename(called, other, RENAME_COST + far)
    kind, n_dims = called.name[:-2], called.name[-2:-1]
    if kind in MODULES and called.name.endswith("d"):
        for other in sorted({"1", "2", "3"} - {n_dims}):
            yield from program.rename(
                called, f"{kind}{other}d", RENAME_COST + far + 0.3
            )


def _swap(situation: Situation, called: Called, far: float) -> Iterator[Edit]:
    """Yield edits that exchange two arguments.

    Anywhere if one has the value that the other must have; else near the failed call.
    """
    program = situation.program
    args = [arg for arg in called.node.args if not isinstance(arg, ast.Starred)]
    likely = args if called.name == "permute" else args[:2]
    for first, second in combinations(args, 2):
        one, other = program.read(first), program.read(second)
        values = situation.read_values(first), situation.read_values(second)
        is_mixed = any(
            {wrong} == a and {right} == b
            for wrong, right in situation.accepted.numbers
            for a, b in (values, values[::-1])
        )
        is_near = called.node.lineno in situation.lines
        is_likely = is_near and first in likely and second in likely
        if (is_mixed or is_likely) and one != other and not program.is_data(first):
            cost = MIXED_COST if is_mixed else SWAP_COST + far
            edits = (
                *program.replace(first, other, cost),
                *program.replace(second, one, cost),
            )
            yield join_edits(edits, cost)


def _free_sizes(program: SourceText, called: Called, far: float) -> Iterator[Edit]:
    """Yield edits that let torch compute one size of a view."""
    if called.name not in {"view", "reshape"}:
        return
    args = called.node.args
    if len(args) == 1 and not isinstance(args[0], (ast.Constant, ast.Tuple)):
        text = f"*{program.read(args[0])}[:-1], -1"
        yield from program.replace(args[0], text, FREE_COST + far + 0.2)
    for at, node in enumerate(args if len(args) > 1 else ()):
        if not isinstance(node, ast.Starred) and read_number(node) != -1:
            yield from program.replace(node, "-1", FREE_COST + far + 0.1 * at)


CALLED_LIST: Final = "[ModuleList]"
NO_FORWARD: Final = 'missing the required "forward" function'
NO_INIT: Final = "before Module.__init__() call"
"""Parts of messages if a list of modules is called, or a module is not whole."""

STATE_COST, MODULE_COST, FLATTEN_COST = 0.4, 0.5, 0.8

KEYS: Final = ("model_state_dict", "state_dict", "model", "net", "weights")
"""Keys under which checkpoints hold the states of a module."""

PREFIX: Final = re.compile(r"module\.|_orig_mod\.|model\.")
"""Prefixes that a wrapper puts before the names of states."""

MISFIT: Final = re.compile(r"size mismatch for ([\w.]+)\.\w+:")

OPTIMIZED: Final = re.compile(r"the optimizer|optimizer can|object is not iterable")
"""Part of messages if an optimizer gets a module, or a method that is not called."""

LOSS: Final = re.compile(r"\w+Loss")


def edit_modules(situation: Situation) -> Iterator[Edit]:
    """Yield edits of states, lists of modules, losses and modes."""
    families = _load_states, _hold_modules, _call_lists, _flatten_before
    for family in (*families, _complete_classes):
        yield from family(situation)
    program = situation.program
    for called in program.calls:  # a loss module is made before it is called
        if LOSS.fullmatch(called.name) and len(called.node.args) > 1:
            yield from program.extend(called.node.func, "{}()", MODULE_COST)
        if OPTIMIZED.search(situation.error) and called.node.lineno in situation.lines:
            for model in called.node.args[:1]:
                yield from program.extend(model, "{}.parameters()", MODULE_COST)
                yield from program.extend(model, "{}()", MODULE_COST)
    # Statistics need more than one value.
    for node in situation.find_near(ast.Name) if OF_ONE in situation.error else ():
        yield from program.extend(node, "{}.eval()", MODULE_COST)


def _complete_classes(situation: Situation) -> Iterator[Edit]:
    """Yield edits that call ``super().__init__()``, or spell ``forward`` right."""
    program, error = situation.program, situation.error
    for function in program.find(ast.FunctionDef) if NO_FORWARD in error else ():
        start, name = function.col_offset + len("def "), function.name
        if get_close_matches(name, ["forward"]):
            written = Stretch(function.lineno, start, start + len(name), "forward")
            yield Edit(stretches=(written,), cost=MODULE_COST)
    for node in situation.find_near(ast.Assign) if NO_INIT in error else ():
        text = f"super().__init__(); {program.read(node)}"
        yield from program.replace(node, text, MODULE_COST + situation.weigh(node))


def _load_states(situation: Situation) -> Iterator[Edit]:
    """Yield edits of ``load_state_dict``.

    It loads the states that a checkpoint holds, or removes a prefix from their names,
    or skips the layers of other sizes.
    """
    program, error = situation.program, situation.error
    templates = [
        f'{{}}["{key}"]' for key in KEYS if f'"{key}"' in program.text or key in error
    ]
    templates += [
        f'{OPEN}k.removeprefix("{prefix}"): v for k, v in {{}}.items(){CLOSE}'
        for prefix in dict.fromkeys(PREFIX.findall(error))
    ]
    for called in program.calls:
        given = called.node.args[0] if called.node.args else None
        if called.name == "load_state_dict" and given is not None:
            for template in templates:
                yield from program.extend(given, template, STATE_COST)
            yield from _skip_misfits(situation, called, given)


OPEN, CLOSE = "{", "}"


def _skip_misfits(
    situation: Situation, called: Called, given: ast.expr
) -> Iterator[Edit]:
    """Yield the edit that loads no states of layers whose sizes differ."""
    program = situation.program
    layers = tuple(dict.fromkeys(MISFIT.findall(situation.error)))
    if layers and len(called.node.args) == 1:
        kept = f"if not k.startswith({layers!r})"
        states = program.read(given)
        text = f"{OPEN}k: v for k, v in {states}.items() {kept}{CLOSE}, strict=False"
        call = f"{program.read(called.node.func)}({text})"
        yield from program.replace(called.node, call, MODULE_COST + STATE_COST)


def _hold_modules(situation: Situation) -> Iterator[Edit]:
    """Yield edits that make a list of modules one whose parameters are registered."""
    program = situation.program
    for node in program.find(ast.Assign) if "parameter" in situation.error else ():
        value = node.value
        if isinstance(node.targets[0], ast.Attribute):
            if isinstance(value, (ast.List, ast.ListComp)):
                yield from program.extend(value, "nn.ModuleList({})", MODULE_COST)
            if isinstance(value, (ast.Dict, ast.DictComp)):
                yield from program.extend(value, "nn.ModuleDict({})", MODULE_COST)


def _call_lists(situation: Situation) -> Iterator[Edit]:
    """Yield edits that make a list of modules one that can be called."""
    program = situation.program
    for called in program.calls if CALLED_LIST in situation.error else ():
        if called.name == "ModuleList" and called.node.args:
            (given,) = called.node.args
            is_bare = isinstance(given, ast.GeneratorExp)  # it has the call's brackets
            before, after = ("(*", ")") if is_bare else ("*", "")
            text = f"{before}{program.read(given)}{after}"
            edits = (
                *program.rename(called, "Sequential", 0),
                *program.replace(given, text, 0),
            )
            yield join_edits(edits, MODULE_COST)


def _flatten_before(situation: Situation) -> Iterator[Edit]:
    """Yield edits that put a ``Flatten`` before the first ``Linear`` of a sequence."""
    program = situation.program
    for called in program.calls:
        if called.name == "Sequential" and called.owner is not None:
            owner = ast.unparse(called.owner)
            args = [arg for arg in called.node.args if isinstance(arg, ast.Call)]
            linear = (n for n in args if ast.unparse(n.func) == f"{owner}.Linear")
            for node in [*linear][:1]:
                cost = FLATTEN_COST + situation.weigh(called.node)
                yield from program.extend(node, f"{owner}.Flatten(), {{}}", cost)
