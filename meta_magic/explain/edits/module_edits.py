"""Edits for what was meant of modules: made, held, loaded and called otherwise."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from meta_magic.explain.edits.edit import Edit
from meta_magic.explain.edits.program_text import Called
from meta_magic.explain.edits.situations import Situation

__all__ = ["edit_modules"]

STATE_COST, MODULE_COST, FLATTEN_COST = 0.4, 0.5, 0.8

KEYS: Final = ("model_state_dict", "state_dict", "model", "net", "weights")
"""Under what checkpoints hold the states of a module."""

PREFIX: Final = re.compile(r"module\.|_orig_mod\.|model\.")
"""What is put before the names of states by a module around it."""

MISFIT: Final = re.compile(r"size mismatch for ([\w.]+)\.\w+:")

LOSS: Final = re.compile(r"\w+Loss")


def edit_modules(situation: Situation) -> Iterator[Edit]:
    """Yield edits of states, of what holds modules, of losses and of modes."""
    for family in (
        load_states,
        hold_modules,
        make_losses,
        flatten_before,
        start_evaluation,
    ):
        yield from family(situation)


def load_states(situation: Situation) -> Iterator[Edit]:
    """Yield edits of what is loaded.

    The states that a checkpoint holds, their names without a prefix, or all but those
    of a layer that is of another size now.
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
            yield from leave_misfits(situation, called, given)


OPEN, CLOSE = "{", "}"


def leave_misfits(
    situation: Situation, called: Called, given: ast.expr
) -> Iterator[Edit]:
    """Yield the edit that loads all states but those of layers of other sizes."""
    program = situation.program
    layers = tuple(dict.fromkeys(MISFIT.findall(situation.error)))
    if layers and len(called.node.args) == 1:
        kept = f"if not k.startswith({layers!r})"
        states = program.read(given)
        text = f"{OPEN}k: v for k, v in {states}.items() {kept}{CLOSE}, strict=False"
        call = f"{program.read(called.node.func)}({text})"
        yield from program.replace(called.node, call, MODULE_COST + STATE_COST)


def hold_modules(situation: Situation) -> Iterator[Edit]:
    """Yield edits that make a list of modules one whose parameters are known."""
    program = situation.program
    for node in program.find(ast.Assign) if "parameter" in situation.error else ():
        value = node.value
        if isinstance(node.targets[0], ast.Attribute):
            if isinstance(value, (ast.List, ast.ListComp)):
                yield from program.extend(value, "nn.ModuleList({})", MODULE_COST)
            if isinstance(value, (ast.Dict, ast.DictComp)):
                yield from program.extend(value, "nn.ModuleDict({})", MODULE_COST)


def make_losses(situation: Situation) -> Iterator[Edit]:
    """Yield edits that make a loss before it is called."""
    for called in situation.program.calls:
        if LOSS.fullmatch(called.name) and len(called.node.args) > 1:
            func = called.node.func
            yield from situation.program.extend(func, "{}()", MODULE_COST)


def flatten_before(situation: Situation) -> Iterator[Edit]:
    """Yield edits that put a ``Flatten`` before a sequence's first linear layer."""
    program = situation.program
    for called in program.calls:
        if called.name == "Sequential" and called.owner is not None:
            owner = ast.unparse(called.owner)
            args = [arg for arg in called.node.args if isinstance(arg, ast.Call)]
            linear = (n for n in args if ast.unparse(n.func) == f"{owner}.Linear")
            for node in [*linear][:1]:
                cost = FLATTEN_COST + situation.weigh(called.node)
                yield from program.extend(node, f"{owner}.Flatten(), {{}}", cost)


def start_evaluation(situation: Situation) -> Iterator[Edit]:
    """Yield edits by which batches of one need no statistics."""
    is_of_one = "more than 1 value per channel" in situation.error
    for node in situation.find_near(ast.Name) if is_of_one else ():
        yield from situation.program.extend(node, "{}.eval()", MODULE_COST)
