"""Edits for what was meant: a size of 1 kept, a module made before it is called."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from math import log
from typing import Final

from meta_magic.explain.edits import Edit, join_edits
from meta_magic.explain.number_edits import is_range
from meta_magic.explain.program_text import Called, Program, is_read, read_number
from meta_magic.explain.situations import Situation

__all__ = ["edit_intents"]

SLICE_COST, TUPLE_COST, STATE_COST, MODULE_COST = 0.9, 0.4, 0.4, 0.5
DETACH_COST, RESIZE_COST = 0.4, 1.3

SIDES: Final = frozenset({28, 32, 48, 64, 96, 112, 128, 224, 227, 256, 299, 384, 512})

MIN_SIDE: Final = 8

MAX_SIDES: Final = 5

KEYS: Final = ("model_state_dict", "state_dict", "model")

LOSSES: Final = re.compile(r"\w+Loss")

PREFIX: Final = re.compile(r"module\.|_orig_mod\.|model\.")

MANY: Final = re.compile(r"values to unpack|not enough values")


def edit_intents(situation: Situation) -> Iterator[Edit]:
    """Yield edits that say what was meant."""
    for family in (
        keep_dimensions,
        slice_names,
        drop_ends,
        unpack,
        load_states,
        hold_modules,
        make_modules,
        start_evaluation,
        shift_indexes,
        name_sizes,
        leave_graph,
        resize_images,
        pad_otherwise,
    ):
        yield from family(situation)


def keep_dimensions(situation: Situation) -> Iterator[Edit]:
    """Yield edits that keep a dimension: ``x[:, :1]`` for ``x[:, 0]``; or drop it."""
    program = situation.program
    for node in situation.near:
        if not isinstance(node, ast.Subscript) or not is_read(node):
            continue
        inner = node.slice
        parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        for part in parts:
            text = program.read(part)
            cost = SLICE_COST + situation.weigh(node)
            if re.fullmatch(r"-?\d+", text):
                after = "" if text == "-1" else str(int(text) + 1)
                before = "" if text == "0" else text
                yield from program.replace(part, f"{before}:{after}", cost)
        yield from program.replace(node, program.read(node.value), cost + 0.6)


def slice_names(situation: Situation) -> Iterator[Edit]:
    """Yield edits that leave out the first or the last of a tensor's dimension."""
    program = situation.program
    texts = ("[:, 1:]", "[:, :-1]", "[1:]", "[:-1]")
    for node in situation.near:
        is_given = isinstance(node, ast.Name) and isinstance(
            next(program.walk_up(node), None), (ast.Call, ast.Assign, ast.Attribute)
        )
        if is_given and node.id in situation.tensors:
            for at, text in enumerate(texts):
                cost = SLICE_COST + 0.5 + 0.1 * at + situation.weigh(node)
                yield from program.extend(node, "{}" + text, cost)


def drop_ends(situation: Situation) -> Iterator[Edit]:
    """Yield edits without ``+ 1`` or ``- 1``."""
    program = situation.program
    for node in program.nodes:
        is_sum = isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub))
        if is_sum and isinstance(node.right, ast.Constant) and node.right.value == 1:
            cost = SLICE_COST + situation.weigh(node)
            yield from program.replace(node, program.read(node.left), cost)


def unpack(situation: Situation) -> Iterator[Edit]:
    """Yield edits of what returns several values: the first is taken, or more are."""
    program = situation.program
    if MANY.search(situation.error):
        for node in situation.near:
            is_tuple = isinstance(node, ast.Tuple) and not is_read(node)
            if is_tuple and len(node.elts) > 1:
                last = ", ".join(program.read(one) for one in node.elts[1:])
                first = program.read(node.elts[0])
                for text in (f"{first}, ({last})", f"{first}, *_", f"*_, {first}"):
                    yield from program.replace(node, text, TUPLE_COST)
    elif "tuple" in situation.error:
        for called in program.calls:
            if called.owner is None or ast.unparse(called.owner) == "self":
                cost = TUPLE_COST + situation.weigh(called.node)
                yield from program.extend(called.node, "{}[0]", cost)


def load_states(situation: Situation) -> Iterator[Edit]:
    """Yield edits of what is loaded: the states in a checkpoint, without a prefix."""
    program = situation.program
    keys = [key for key in KEYS if f'"{key}"' in program.text or key in situation.error]
    prefixes = dict.fromkeys(PREFIX.findall(situation.error))
    for called in program.calls:
        if called.name != "load_state_dict" or not called.node.args:
            continue
        given = called.node.args[0]
        for key in keys:
            yield from program.extend(given, f'{{}}["{key}"]', STATE_COST)
        for prefix in prefixes:
            text = f'{{{{k.removeprefix("{prefix}"): v for k, v in {{}}.items()}}}}'
            text = text.replace("{{", "\0").replace("}}", "\1")
            before, _, after = text.partition("{}")
            template = (before + "{}" + after).replace("\0", "{").replace("\1", "}")
            yield from program.extend(given, template, STATE_COST)


def hold_modules(situation: Situation) -> Iterator[Edit]:
    """Yield edits that make a list of modules one whose parameters are known."""
    program = situation.program
    if "parameter" not in situation.error:
        return
    for node in program.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            value = node.value
            if isinstance(value, (ast.List, ast.ListComp)):
                yield from program.extend(value, "nn.ModuleList({})", MODULE_COST)
            if isinstance(value, (ast.Dict, ast.DictComp)):
                yield from program.extend(value, "nn.ModuleDict({})", MODULE_COST)


def make_modules(situation: Situation) -> Iterator[Edit]:
    """Yield edits that make a loss before it is called, and flatten before a layer."""
    program = situation.program
    for called in program.calls:
        if LOSSES.fullmatch(called.name) and len(called.node.args) > 1:
            yield from program.extend(called.node.func, "{}()", MODULE_COST)
        if called.name == "Sequential":
            yield from flatten_first(program, called, situation)


def flatten_first(
    program: Program, called: Called, situation: Situation
) -> Iterator[Edit]:
    """Yield edits that put a ``Flatten`` before the linear layers of a sequence."""
    owner = f"{ast.unparse(called.owner)}." if called.owner is not None else ""
    for node in called.node.args:
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"{owner}Linear":
            cost = MODULE_COST + 0.3 + situation.weigh(called.node)
            yield from program.extend(node, f"{owner}Flatten(), {{}}", cost)
            return


def start_evaluation(situation: Situation) -> Iterator[Edit]:
    """Yield edits by which batches of one are none that statistics are of."""
    program = situation.program
    if "more than 1 value per channel" not in situation.error:
        return
    for node in situation.near:
        if isinstance(node, ast.Name):
            yield from program.extend(node, "{}.eval()", MODULE_COST)


def shift_indexes(situation: Situation) -> Iterator[Edit]:
    """Yield edits by which numbers of classes or rows are not out of range."""
    program = situation.program
    if not is_range(situation.error):
        return
    for number, operand in enumerate(situation.call.operands):
        if not operand.geometry.dtype.is_floating_point:
            for node in situation.find_operand(number):
                cost = MODULE_COST + situation.weigh(node)
                yield from program.extend(node, "{} - 1", cost + 0.1)
    for called in program.calls:
        far = situation.weigh(called.node)
        if called.name in {"cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss"}:
            yield from program.add_argument(called.node, "ignore_index=-1", 0.8 + far)


def leave_graph(situation: Situation) -> Iterator[Edit]:
    """Yield edits of what autograd refuses: a leaf that is written, or that is read."""
    program = situation.program
    if "grad" not in situation.error and "leaf" not in situation.error:
        return
    for called in program.calls:
        far = situation.weigh(called.node)
        if called.name == "numpy" and called.owner is not None:
            yield from program.extend(called.owner, "{}.detach()", DETACH_COST + far)
        if called.name.endswith("_") and called.owner is not None:
            yield from program.extend(called.owner, "{}.data", DETACH_COST + far)
        if called.name == "backward" and called.owner is not None:
            for at, text in enumerate(("{}.mean()", "{}.sum()")):
                cost = DETACH_COST + far + at / 10
                yield from program.extend(called.owner, text, cost)
        if called.name == "Parameter":
            yield from program.add_argument(called.node, "requires_grad=False", 0.7)
    for node in situation.near:
        target = node.target if isinstance(node, ast.AugAssign) else None
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            target = node.targets[0]
        if target is not None and isinstance(node, ast.stmt):
            text = f"with torch.no_grad(): {program.read(node)}"
            yield from program.replace(node, text, DETACH_COST)


def resize_images(situation: Situation) -> Iterator[Edit]:
    """Yield edits of the two sizes of square images, to those that are common."""
    program = situation.program
    for node in program.nodes:
        if not isinstance(node, (ast.Call, ast.Tuple)):
            continue
        given = node.elts if isinstance(node, ast.Tuple) else node.args
        for first, second in pairwise(given):
            side = read_number(first)
            if side and side >= MIN_SIDE and side == read_number(second):
                for at, other in enumerate(list_sides(side)):
                    edits = (
                        *program.replace(first, str(other), 0),
                        *program.replace(second, str(other), 0),
                    )
                    yield join_edits(edits, RESIZE_COST + at / 10)


def list_sides(side: int) -> list[int]:
    """Return the sides that images commonly have, those next to one first."""
    others = sorted(SIDES - {side}, key=lambda other: abs(log(other / side)))
    return others[:MAX_SIDES]


def pad_otherwise(situation: Situation) -> Iterator[Edit]:
    """Yield edits that pad by what is not limited by the size that is there."""
    for node in situation.near:
        if isinstance(node, ast.keyword) and node.arg in {"mode", "padding_mode"}:
            if isinstance(node.value, ast.Constant) and node.value.value == "reflect":
                yield from situation.program.replace(node.value, '"replicate"', 0.5)


def name_sizes(situation: Situation) -> Iterator[Edit]:
    """Yield edits that use the size of a batch at hand for one that is written."""
    program = situation.program
    for called in program.calls:
        if called.name in {"view", "reshape", "expand"} and called.owner is not None:
            owner, args = program.read(called.owner), called.node.args
            if len(args) > 1 and re.fullmatch(r"[\w.]+", owner):
                cost = SLICE_COST + situation.weigh(called.node)
                yield from program.replace(args[0], f"{owner}.shape[0]", cost)
