"""Rules about statements that have no effect, or not the effect that they seem to have.

``model.eval`` without parentheses and ``p = p - 0.1 * p.grad`` run, and change nothing.
They are looked for in the source of the files that made calls, once for each text. Read
:func:`list_sources` first.
"""

import ast
import re
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache, partial
from linecache import getlines
from typing import Final, TypeAlias

from meta_magic.cost.wrong.flow import (
    Flow,
    Mistake,
    list_nodes,
    name_of,
    name_set,
)
from meta_magic.cost.wrong.loop_source import Source, list_loops

METHODS: Final = name_set("eval train zero_grad step backward update")
"""Methods that are called for what they do."""

IN_PLACE: Final = name_set(
    "masked_fill clamp scatter scatter_add index_add index_fill index_copy lerp"
)
PURE: Final = IN_PLACE | name_set("transpose permute reshape detach softmax")
"""Functions that change nothing; some have a twin that does."""

OTHERS: Final = "(ref|reference|ema|target|teacher|frozen|old|slow|shadow|best|avg)"
OTHER: Final = re.compile(f"(^|_){OTHERS}(_|$)")
"""Names that people give a module that is not trained, beside one that is."""

Found: TypeAlias = tuple[ast.stmt, str, str, set[str] | None]
"""A statement, the note on it, and why it is noted; and names, of which one must be
that of a module (None: it is always noted)."""


def list_sources(flow: Flow) -> Iterator[Source]:
    """Yield the source of each file of the user's own code that made a call."""
    seen = set[str]()
    for call in flow.first_own:
        at = call.position
        if at is not None and at.file not in seen:
            seen.add(at.file)
            yield Source(call, at.file, at.line, "".join(getlines(at.file)), [])


def find_statements(
    look: Callable[[str], list[Found]], pattern: str, flow: Flow
) -> Iterator[Mistake]:
    """Yield a mistake for each statement that a function finds in a source.

    A source in which nothing fits the pattern has none, and is not parsed.
    """
    for source in list_sources(flow):
        for node, text, why, names in (
            look(source.text) if re.search(pattern, source.text, re.MULTILINE) else ()
        ):
            if names is None or names & flow.module_names:
                yield source.make_mistake(node, text, why)


@lru_cache(maxsize=8)
def list_uncalled(text: str) -> list[Found]:
    """List statements such as ``model.eval``."""
    return [
        (
            node,
            f"{ast.unparse(node)} calls nothing: write {ast.unparse(node)}()",
            "a method without parentheses is only read",
            None,
        )
        for node in list_nodes(text)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr in METHODS
    ]


@lru_cache(maxsize=8)
def list_lost_updates(text: str) -> list[Found]:
    """List last statements of loops over parameters that bind the loop's variable."""
    found: list[Found] = []
    for loop in list_nodes(text):
        if isinstance(loop, ast.For) and isinstance(last := loop.body[-1], ast.Assign):
            bound = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
            name = getattr(last.targets[0], "id", "")
            is_computed = name in bound and isinstance(last.value, ast.BinOp)
            if is_computed and "parameters()" in ast.unparse(loop.iter):
                what = f"{name} = ... names another tensor, and changes no parameter: "
                why = f"{name} is the variable of the loop"
                found.append((last, f"{what}write {name}.copy_(...)", why, None))
    return found


@lru_cache(maxsize=8)
def list_attributes(code: str) -> list[Found]:
    """List ``module.requires_grad = False``, an attribute like any other.

    And ``tensor.require_grad = False``, which is misspelled.
    """
    found: list[Found] = []
    for node in list_nodes(code):
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(target, ast.Attribute):
            name, owner = name_of(target.value), ast.unparse(target.value)
            value = ast.unparse(node.value)
            forms = {
                "requires_grad": (f"requires_grad_({value})", "is a module", {name}),
                "require_grad": (f"requires_grad = {value}", "has no such one", None),
            }
            if target.attr in forms:
                form, why, names = forms[target.attr]
                what = f"{owner}.{target.attr} is an attribute that torch does not read"
                found.append(
                    (node, f"{what}: write {owner}.{form}", f"{name} {why}", names)
                )
    return found


@lru_cache(maxsize=8)
def list_second_names(code: str) -> list[Found]:
    """List ``reference = model``: one module by two names, where two are meant."""
    found: list[Found] = []
    for node in list_nodes(code):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            name, value = name_of(node.targets[0]), node.value.id
            if OTHER.search(name) and not OTHER.search(value):
                what = f"{name} is {value} by a second name: "
                why = "what trains one changes the other"
                text = f"{what}write copy.deepcopy({value})"
                found.append((node, text, why, {name, value}))
    return found


def find_dropped_results(flow: Flow) -> Iterator[Mistake]:
    """Yield statements of a function or loop that compute a tensor nobody gets."""
    unread = {
        (call.position.file, call.position.line, call.name)
        for call in flow.named(PURE, is_own=True)
        if call.position is not None
        and call.function == call.name
        and not flow.is_read[call.outputs[0]]
    }
    for source in list_sources(flow) if unread else ():
        for node in list_nodes(source.text):
            called = node.value if isinstance(node, ast.Expr) else None
            if not isinstance(called, ast.Call) or called.col_offset == 0:
                continue
            name = name_of(called.func)
            if (source.file, called.lineno, name) in unread:
                twin = f", or write {name}_" if name in IN_PLACE else ""
                yield source.make_mistake(
                    called,
                    f"{name} returns another tensor, which nothing reads: assign "
                    f"it{twin}",
                    "the tensor that it is called on stays as it is",
                )


def find_other_steps(flow: Flow) -> Iterator[Mistake]:
    """Yield optimizers that replace that of a schedule, and steps of another one.

    The optimizer whose rates a schedule changes is then not the one that steps; another
    one steps without its scaler, or in the place of one that never steps.
    """
    for source in list_loops(flow, may_mistake_steps):
        before, loop = list_bound(source.text), source.loops[0]
        inner = [n for n in ast.walk(loop) if isinstance(n, ast.Call)]
        stepped = {
            ast.unparse(call.func.value): call
            for call in inner
            if isinstance(call.func, ast.Attribute) and call.func.attr == "step"
        }
        bound = dict[str, str]()
        for name, value, node in before:
            made = [v for v in bound.values() if "lr_sch" in v and f"({name}," in v]
            is_again = made and name in bound and name in stepped
            if is_again and node.lineno < loop.lineno:
                found = source.make_mistake(
                    node,
                    f"the schedule has the {name} that was there before, and changes "
                    "no learning rate of this one: make it after the optimizer",
                    f"{made[0][:60]} comes first",
                )
                at = next(one for _, text, one in before if text == made[0])
                shift = (found.line or node.lineno) - node.lineno
                yield found._replace(lines=(at.lineno + shift,))
            bound[name] = value
        yield from find_mistaken(source, inner, stepped)
        for scaler in [n for n, value in bound.items() if "GradScaler(" in value]:
            plain = [n for n in stepped if "optim." in bound.get(n, "")]
            called = {ast.unparse(call.func) for call in inner}
            own = {f"{scaler}.step", f"{scaler}.unscale_"}
            if plain and f"{scaler}.scale" in called and called.isdisjoint(own):
                yield source.make_mistake(
                    stepped[plain[0]],
                    f"steps with gradients that {scaler} has scaled: write "
                    f"{scaler}.step({plain[0]}) and {scaler}.update()",
                    f"{scaler}.scale(loss) multiplies all gradients",
                )


def may_mistake_steps(text: str) -> bool:
    """Whether a source has a schedule, a scaler, or several optimizers."""
    names = {*re.findall(r"(\w+)\W*\.(?:step|zero_grad)\(", text)}
    return len(names) > 1 or "lr_sch" in text or "GradScaler" in text


def find_mistaken(
    source: Source, inner: list[ast.Call], stepped: Collection[str]
) -> Iterator[Mistake]:
    """Yield the step of one optimizer after the gradients of another were cleared."""
    cleared = ""
    for call in sorted(inner, key=lambda one: one.lineno):
        owner, method = ast.unparse(call.func).rpartition(".")[::2]
        cleared = owner if method == "zero_grad" else cleared
        is_other = method == "step" and cleared and owner != cleared
        is_idle = is_other and cleared not in stepped
        made = re.search(rf"(?m)^\s*{re.escape(cleared)} = .*optim", source.text)
        is_given = f"({cleared})" in source.text  # to a scaler, or a schedule
        if is_idle and made and owner in stepped and not is_given:
            yield source.make_mistake(
                call,
                f"steps {owner}, and {cleared} never steps: write {cleared}.step()",
                f"{cleared}.zero_grad() comes before it",
            )
            return


@lru_cache(maxsize=8)
def list_bound(text: str) -> list[tuple[str, str, ast.stmt]]:
    """Return the assignments of a source that makes schedules or scalers, in order."""
    nodes = list_nodes(text) if "lr_sch" in text or "GradScaler" in text else ()
    found = [
        (ast.unparse(node.targets[0]), ast.unparse(node.value), node)
        for node in nodes
        if isinstance(node, ast.Assign)
    ]
    return sorted(found, key=lambda one: one[2].lineno)


find_uncalled = partial(
    find_statements, list_uncalled, rf"\.({'|'.join(METHODS)})\b(?![ \t]*\()"
)
find_lost_updates = partial(
    find_statements, list_lost_updates, r"^[ \t]*for\b[^:]*parameters\(\)"
)
find_attributes = partial(
    find_statements, list_attributes, r"\.requires?_grad[ \t]*=[^=]"
)
find_second_names = partial(
    find_statements,
    list_second_names,
    rf"{OTHERS}(_\w*)?[ \t]*=[ \t(]*\w+[ \t)]*([#;=]|$)",
)
