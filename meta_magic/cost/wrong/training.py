"""Rules about training loops: steps, gradients, modes, and what an optimizer holds.

Each yields mistakes on the calls of a ``Flow``; ``mistakes`` says how sure each is.
"""

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from linecache import getline, getlines
from typing import TYPE_CHECKING, Final

import numpy as np

from meta_magic.cost.initialization import (
    NOTHING,
    TensorContents,
    follow_contents,
    may_be_empty,
)
from meta_magic.cost.program_columns import PHASES
from meta_magic.cost.wrong.flow import RECORDED, Flow, Mistake
from meta_magic.cost.wrong.read_calls import ReadCall
from meta_magic.trace.modules import walk_tensors

if TYPE_CHECKING:
    from meta_magic.trace.calls import ModuleCall

CLEARING: Final = frozenset({"zero_", "foreach_zero_", "fill_", "copy_"})
RECORDED_END: Final = "record_function_exit"


def find_missing_steps(flow: Flow) -> Iterator[Mistake]:
    """Yield a loop that computes and clears gradients, and never steps them all.

    Where an optimizer steps, another one is cleared in the loop and does not.
    """
    cleared = [call.site for call in flow.clears]
    n_cleared = len({site for site in cleared if cleared.count(site) > 1})
    n_stepped = len({call.site for call in flow.steps})
    if len(cleared) < 2 or len(flow.backwards) < 2 or (n_stepped >= n_cleared > 0):
        return
    columns = flow.calls.columns
    is_update = ~flow.calls.is_among(frozenset({"init", "backward"}))[columns.call]
    left = flow.trained - {*columns.storage[is_update & columns.is_written].tolist()}
    # Without any step all parameters are left; beside one of another optimizer some.
    if not left or (left == flow.trained) is bool(flow.steps):
        return
    first = min(row for row, leaf in flow.program.facts.accumulated if leaf in left)
    before = [call for call in flow.backwards if call.index < first]
    yield Mistake(
        before[-1] if flow.steps else flow.backwards[-1],
        "gradients are computed and cleared, and no optimizer steps: optimizer.step() "
        "is missing",
        f"{len(left)} parameters get gradients in {len(flow.backwards)} backward "
        f"passes and {len(cleared)} zero_grad(), and none steps them",
        (flow.clears[-1],),
    )


def find_idle_steps(flow: Flow) -> Iterator[Mistake]:
    """Yield steps of an optimizer that change nothing: there are no gradients."""
    by_site: dict[object, list[ReadCall]] = defaultdict(list)
    for step in flow.steps:
        by_site[step.site].append(step)
    for steps in by_site.values():
        ends = [flow.calls[step.index + 1 : step.index + 2] for step in steps]
        is_idle = all(end and end[0].name == RECORDED_END for end in ends)
        before = [c for c in flow.backwards if c.index < steps[-1].index]
        if is_idle and before and len(steps) > 1:
            yield Mistake(
                steps[0],
                "this step changes nothing: its parameters have no gradients, as they "
                "were cleared after backward(), backward() comes after the step, or "
                "the loss is detached from them",
                f"{len(steps)} steps ran no operator",
                (before[-1],),
            )


def find_discarded_gradients(flow: Flow) -> Iterator[Mistake]:
    """Yield a ``zero_grad`` that clears most gradients before a step uses them."""
    if not flow.clears or len({c.site for c in flow.steps}) != 1:
        return  # gradients of one optimizer may be cleared before another one steps
    marks = [c.name for c in flow.calls.find((RECORDED, RECORDED_END))]
    if any(one == other == RECORDED for one, other in pairwise(marks)):
        return  # a step calls a closure, which clears, several times
    kinds = (flow.backwards, flow.clears, flow.steps)
    events = sorted((c.index, kind) for kind, some in enumerate(kinds) for c in some)
    cleared, is_pending = [0], False  # passes that are cleared before each step
    for _, kind in events:
        cleared[-1] += is_pending and kind == 1
        if kind == 2:
            cleared.append(0)
        is_pending = kind == 0
    if len(cleared) > 2 and all(cleared[:-1]) and not is_gradient_read(flow):
        yield Mistake(
            flow.clears[0],
            "clears gradients before a step uses them, though they are to add up: "
            "call zero_grad() after step()",
            f"{sum(cleared)} backward passes are cleared before {len(flow.steps)} "
            "steps, some before each",
            (flow.steps[0],),
        )


def is_gradient_read(flow: Flow) -> bool:
    """Whether the user's own code reads gradients, as to combine those of passes."""
    columns = flow.calls.columns
    backward, optimizer = PHASES.index("backward"), PHASES.index("optimizer")
    phase = columns.phase[columns.call]
    storages, first = np.unique(columns.storage, return_index=True)
    is_read = np.isin(columns.storage, storages[phase[first] == backward])
    is_read &= (phase != backward) & (phase != optimizer)
    calls = (flow.calls[row] for row in np.unique(columns.call[is_read]).tolist())
    return any(one.is_own and "clip_grad" not in one.function for one in calls)


def find_old_gradients(flow: Flow) -> Iterator[Mistake]:
    """Yield steps that use the gradients of the step before, too.

    A gradient was stepped, then added to, then stepped again, and was never cleared.
    """
    columns, phase = flow.calls.columns, flow.calls.columns.phase
    backward, optimizer = PHASES.index("backward"), PHASES.index("optimizer")
    is_adding = flow.calls.is_named(("add_",)) & (phase == backward)
    added = columns.first[:-1][is_adding]
    if not added.size:
        return
    is_cleared = (flow.calls.is_named(CLEARING) & (phase != backward))[columns.call]
    is_stepped = (phase == optimizer)[columns.call] & ~columns.is_made
    keys = columns.call * columns.n_storages + columns.storage
    is_stepped &= ~np.isin(keys, keys[columns.is_written])
    is_meant = is_stepped | (is_cleared & columns.is_written)
    is_meant[added] = True
    is_meant &= np.isin(columns.storage, columns.storage[added])
    # Sorted by storage: a step, additions, and a step again.
    entries = np.flatnonzero(is_meant)
    entries = entries[np.argsort(columns.storage[entries], kind="stable")]
    storage, is_add = columns.storage[entries], is_adding[columns.call[entries]]
    is_again = is_add[1:] & is_add[:-1] & (storage[1:] == storage[:-1])
    entries = entries[np.append(True, ~is_again)]
    is_step, is_add = is_stepped[entries], is_adding[columns.call[entries]]
    is_old = is_step[:-2] & is_add[1:-1] & is_step[2:]
    is_old &= columns.storage[entries[:-2]] == columns.storage[entries[2:]]
    if is_old.any():
        first = min(np.flatnonzero(is_old), key=lambda k: entries[k + 2])
        yield Mistake(
            flow.calls[int(columns.call[entries[first]])],
            "this step uses the gradients of earlier steps, too: zero_grad() is "
            "missing",
            "gradients that a step had used were added to, and stepped again",
        )


def find_train_mode(flow: Flow) -> Iterator[Mistake]:
    """Yield evaluations of a trained module that run in training mode."""
    if not flow.steps or not flow.trained:
        return
    starts = [step.index for step in flow.steps]
    outer = flow.outer_calls
    trained = {c.root for c in outer if is_differentiated(flow, c)}
    plain = [c for c in outer if c.root in trained and not is_differentiated(flow, c)]
    inputs = [
        (*[t.tensor_id for _, t in c.inputs], bisect(starts, c.first_op)) for c in plain
    ]
    for call, given in zip(plain, inputs, strict=True):
        if inputs.count(given) > 1 or call.first_op < starts[0]:
            continue  # several samples of a dropout may be meant
        noisy = find_noisy(flow, call)
        if noisy is None or not is_only_read(flow, call):
            continue
        if is_put_in_eval(flow, call):
            at = noisy.position
            source = "" if at is None else getline(at.file, at.line)
            if "dropout(" in source and "training" not in source:
                yield Mistake(
                    noisy,
                    f"{noisy.label} drops elements in evaluation, too: "
                    "training=self.training says when it should",
                    "a function does not know the mode of the module that calls it",
                    (flow.calls[call.first_op],),
                )
                return
        else:
            yield Mistake(
                noisy,
                f"{call.class_name} runs without gradients and in training mode "
                f"({noisy.label}): eval() is missing before the evaluation",
                "it was trained in this block, and its result reaches no loss that is "
                "differentiated",
                line=call.line,
            )
            return


def get_lines(call: ReadCall) -> list[str]:
    """Return the lines of the file that made a call; [] for none."""
    return [] if call.position is None else getlines(call.position.file)


def is_put_in_eval(flow: Flow, call: "ModuleCall") -> bool:
    """Whether the source puts the module of a call in evaluation mode, by its name."""
    if call.position is None or call.root is None:
        return False
    name = flow.modules[call.root].name
    return any(f"{name}.eval()" in line for line in getlines(call.position.file))


def find_eval_mode(flow: Flow) -> Iterator[Mistake]:
    """Yield a line that trains in training mode first, then in evaluation mode."""
    steps = flow.steps
    was_noisy: set[object] = set()
    for call in flow.outer_calls if steps else ():
        if steps[-1].index <= call.end_op or not is_differentiated(flow, call):
            continue
        noisy = find_noisy(flow, call)
        where = call.root, call.position
        if noisy is not None:
            was_noisy.add(where)
        elif where in was_noisy and is_put_in_eval(flow, call):
            was_noisy.discard(where)
            yield Mistake(
                flow.calls[call.first_op],
                f"{call.class_name} is trained in evaluation mode, after an "
                "evaluation: call train() before each epoch",
                "in earlier turns this line ran in training mode",
                line=call.line,
            )


def is_differentiated(flow: Flow, call: "ModuleCall") -> bool:
    """Whether autograd can go back through a module call."""
    return any(n in flow.differentiated for n in range(call.first_op, call.end_op))


def find_noisy(flow: Flow, call: "ModuleCall") -> ReadCall | None:
    """Return the first dropout, or norm by its batch, within a module call."""
    names = ("native_batch_norm", "native_dropout", "bernoulli_")
    for one in flow.calls.find(names, rows=range(call.first_op, call.end_op)):
        is_norm, is_drawn = one.name == names[0], one.name == names[2]
        is_off = is_norm and not one.arguments.get("training")
        if not is_off and (not is_drawn or one.function.endswith("dropout")):
            return one
    return None


def is_only_read(flow: Flow, call: "ModuleCall") -> bool:
    """Whether the results of a module call are read, and nothing differentiated is."""
    reached = {tensor.tensor_id for _, tensor in call.outputs}
    is_read = False
    for later in flow.calls[call.end_op :]:
        if reached.intersection(later.inputs):
            is_read = True
            if later.index in flow.differentiated:
                return False
            reached.update(later.outputs)
    return is_read


# What follows from the order of statements


def find_self_copies(flow: Flow) -> Iterator[Mistake]:
    """Yield where trained parameters are loaded from themselves: no copy was kept.

    Or they are averaged with themselves.
    """
    phases = frozenset(PHASES) - {"backward", "optimizer"}
    for call in flow.calls.find(("copy_", "lerp_", "add_"), phases, is_own=True):
        first, second = [*call.signature.inputs, None][:2]
        if not flow.steps or len(call.inputs) < 2 or first != second:
            continue
        before = flow.maker(call, 0)
        has_line = before is not None and before.line == call.line
        if call.name == "add_" and not (has_line and before and before.name == "mul_"):
            continue  # weights may decay
        target, source = (flow.storages[tensor] for tensor in call.inputs[:2])
        if target == source and target in flow.trained:
            made = [flow.maker(call, 1), before and flow.maker(before, 0)]
            yield Mistake(
                call,
                "writes parameters onto themselves: both are the same memory; "
                "copy.deepcopy, or clone(), keeps a copy",
                "state_dict() and detach() copy nothing, and an assignment gives a "
                "second name",
                tuple(one for one in made if one is not None),
            )
            return


def find_fresh_layers(flow: Flow) -> Iterator[Mistake]:
    """Yield layers that are made anew in each call of a module: never trained."""
    trained = flow.trained.intersection(flow.program.facts.parameters)
    first: dict[object, int] = {}  # by line and module, the call that made parameters
    for call in flow.calls.find(("empty", "randn", "zeros", "ones"), is_own=True):
        if call.module_call is None or flow.storages[call.outputs[0]] not in trained:
            continue
        within = flow.module_calls[call.module_call]
        where = call.site, within.root, within.module
        if first.setdefault(where, call.module_call) != call.module_call:
            yield Mistake(
                call,
                "makes a layer in each call of a module: it is random each time, and "
                "no optimizer steps it; make it in __init__",
                f"{within.class_name} was called before, and made one then, too",
            )
            return


def find_stale_optimizers(flow: Flow) -> Iterator[Mistake]:
    """Yield parameters that are trained and not stepped.

    They were made after the optimizer, which holds those that no module has any more.
    Or none was given them: a few that are nearer to the loss than all that are stepped.
    """
    optimized = {*flow.program.facts.optimized}
    if not optimized or not flow.steps:
        return
    held: dict[int, tuple[str, int]] = {}
    for name, tensor, storage in walk_tensors(flow.modules):
        held.setdefault(storage, (name, tensor.numel))
    stale = optimized - held.keys() - flow.trained
    missed = [s for s in held if s in flow.trained and s not in optimized]
    makers = find_makers(flow)
    known = [s for s in missed if s in makers and flow.calls[makers[s]].is_own]
    if not known or not (stale or is_head_missed(flow, missed, held)):
        return
    layer = flow.calls[min(makers[s] for s in known)]
    name = held[missed[0]][0]
    text = f"no optimizer steps {name}, which gets gradients: give it to one"
    why, line = "", None
    if stale:
        text = (
            f"the optimizer does not step {name}, which is made after it (line "
            f"{layer.line}): make the optimizer after the last layer"
        )
        why = f"; the optimizer has {len(stale)} that no module holds"
        line = find_optimizer(layer)
    yield Mistake(
        layer,
        text,
        f"{len(missed)} parameters get a gradient and are not stepped{why}",
        (layer, flow.steps[0]),
        line=line,
    )


def find_makers(flow: Flow) -> dict[int, int]:
    """Return for each storage the first call that made it while a module was built."""
    columns = flow.calls.columns
    is_init = (columns.phase == PHASES.index("init"))[columns.call]
    rows = np.flatnonzero(is_init & columns.is_made)[::-1]
    storages, calls = columns.storage[rows].tolist(), columns.call[rows].tolist()
    return dict(zip(storages, calls, strict=True))


def is_head_missed(
    flow: Flow, missed: list[int], held: dict[int, tuple[str, int]]
) -> bool:
    """Whether parameters that are not stepped are few, new, and nearest to the loss.

    A gradient reaches those first that are nearest to the loss. What is loaded, or in
    evaluation mode, as a network that judges images, is left as it is on purpose.
    """
    order = [leaf for _, leaf in flow.program.facts.accumulated]
    left, stepped = {*missed}, {*flow.program.facts.optimized}
    n_left, n_stepped = (
        sum(size for one, (_, size) in held.items() if one in some)
        for some in (left, stepped)
    )
    is_loaded = any(
        flow.storages[call.inputs[0]] in left for call in flow.calls.find(("copy_",))
    )
    is_nearest = {*order[: len(left)]} == left and not stepped.isdisjoint(order)
    name = held[missed[0]][0].partition(".")[0]
    text = "".join(get_lines(flow.steps[0]))
    is_few = n_left < n_stepped and len(flow.steps) > 1
    return is_few and is_nearest and not is_loaded and f"{name}.eval()" not in text


def find_fresh_optimizers(flow: Flow) -> Iterator[Mistake]:
    """Yield optimizers that are made anew for each step, or each epoch.

    Their averages of gradients then begin at zero again, for the same parameters, and
    with the same settings.
    """
    starts = [step.index for step in flow.steps]
    columns = flow.calls.columns
    is_begun = flow.calls.is_named(("zeros_like",))
    is_begun &= flow.calls.is_among(frozenset({"optimizer"}))
    averaged = columns.storage[columns.first[:-1][is_begun]].tolist()
    begun: dict[int, set[int]] = defaultdict(set)
    for storage, row in zip(averaged, np.flatnonzero(is_begun).tolist(), strict=True):
        if number := bisect(starts, row):
            begun[storage].add(number - 1)
    if not begun:
        return
    storage, numbers = max(begun.items(), key=lambda item: len(item[1]))
    fresh = [flow.steps[number] for number in sorted(numbers)]
    rows = columns.call[columns.is_written & (columns.storage == storage)]
    writes = [rows[rows > step.index][0] for step in fresh]
    between = columns.phase[rows[(rows > writes[0]) & (rows < writes[-1])]]
    is_reset = bool((between != PHASES.index("optimizer")).any())
    has_one_setting = len({*columns.signature[writes].tolist()}) == 1
    kind = str(fresh[0].arguments["name"]).partition("#")[2].partition(".")[0]
    lines = get_lines(fresh[0])
    made = [n for n, text in enumerate(lines, 1) if f"{kind}(" in text]
    if len(made) != 1 or is_reset or not has_one_setting or len(fresh) < 2:
        return
    is_each = len(fresh) == len(starts)
    if is_each or (len(fresh) > 2 and is_of_epoch(lines, made[0])):
        line, at = fresh[0].line, fresh[0].position
        yield Mistake(
            fresh[0],
            f"makes {kind} anew for each {'step' if is_each else 'epoch'}: its "
            "averages of gradients begin at zero each time; make it before the loop",
            f"the same parameters get them {len(fresh)} times in {len(starts)} steps",
            line=made[0] + line - at.line if line and at else None,
        )


def is_of_epoch(lines: list[str], number: int) -> bool:
    """Whether a line is within a loop or function whose first line speaks of epochs."""
    indent = len(lines[number - 1]) - len(lines[number - 1].lstrip())
    for text in reversed(lines[: number - 1]):
        here = len(text) - len(text.lstrip())
        if text.strip() and here < indent:
            indent = here
            if text.lstrip().startswith(("for ", "def ")) and "epoch" in text.lower():
                return True
    return False


def find_optimizer(layer: ReadCall) -> int | None:
    """Return the last line before a layer that makes something of ``parameters()``."""
    at = layer.position
    if at is None or layer.line is None:
        return None
    shift = layer.line - at.line
    source = getlines(at.file)[: at.line]
    found = [n for n, text in enumerate(source, 1) if ".parameters()" in text]
    return found[-1] + shift if found else None


def find_empty_memory(flow: Flow) -> Iterator[Mistake]:
    """Yield tensors of modules that nothing wrote, and that are read or left out.

    One mistake for each line that allocates such memory.
    """
    columns = flow.calls.columns
    if not may_be_empty(flow.program, columns, flow.modules):
        return
    by_line: dict[int | None, list[TensorContents]] = defaultdict(list)
    for one in follow_contents(flow.program, columns, flow.modules):
        if one.is_certain and flow.calls[one.contents.call].is_own:
            by_line[one.contents.line].append(one)
    for found in by_line.values():
        first, n_more = found[0], len(found) - 1
        names = first.name + (f" and {n_more:,} more" if n_more else "")
        reads = [one.read_line for one in found if one.read_line is not None]
        built = first.constructed
        yield Mistake(
            flow.calls[first.contents.call],
            f"nothing initializes {names}: what is allocated here is never written",
            ""
            if built is None or built.kind == NOTHING
            else f"the constructor of {first.name} gave {built}",
            lines=tuple(sorted({*reads})),
        )
