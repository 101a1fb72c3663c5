"""The rules of programs that run and are wrong, and ``find_wrong``, which runs them."""

from collections.abc import Callable, Iterator, Mapping
from linecache import getline
from typing import TYPE_CHECKING, Final

from meta_magic.cost.wrong import (
    idle_statements,
    loop_source,
    losses,
    sequence_layers,
    shapes,
    training,
)
from meta_magic.cost.wrong.flow import Flow, Mistake
from meta_magic.trace.notes import Note, Severity
from meta_magic.trace.summary import paused_collector

if TYPE_CHECKING:
    from meta_magic.trace.trace import Trace

Rule = Callable[[Flow], Iterator[Mistake]]

CERTAIN: Final[Mapping[str, Rule]] = {
    "loss size": losses.find_loss_sizes,
    "broadcast": losses.find_broadcasts,
    "probabilities": losses.find_doubled,
    "detached": losses.find_cut_terms,
    "size one": shapes.find_softmax_of_one,
    "old gradients": training.find_old_gradients,
    "uninitialized": training.find_empty_memory,
}
"""The rules whose mistakes are always notes, by the kind of note."""

LIKELY: Final[Mapping[str, Rule]] = {
    "raw scores": losses.find_raw_scores,
    "crossed rows": losses.find_crossed_rows,
    "swapped": losses.find_swapped,
    "weighted mean": losses.find_weighted_means,
    "dropped loss": losses.find_dropped_losses,
    "sum beside mean": losses.find_sums_beside_means,
    "own neighbor": losses.find_own_neighbors,
    "other noise": losses.find_other_noise,
    "zero difference": losses.find_zero_differences,
    "moving target": losses.find_moving_targets,
    "blended classes": losses.find_blended_classes,
    "copied labels": sequence_layers.find_copied_labels,
    "cut mask": sequence_layers.find_cut_masks,
    "lost state": sequence_layers.find_lost_states,
    "one key": sequence_layers.find_one_key,
    "softmax dimension": shapes.find_softmax_axes,
    "class dimension": shapes.find_other_classes,
    "normalized dimension": shapes.find_normalized,
    "mixed": shapes.find_scrambles,
    "merged batch": shapes.find_merged_batches,
    "squeeze": shapes.find_bare_squeezes,
    "mixed samples": sequence_layers.find_mixed_samples,
    "last sample": sequence_layers.find_last_samples,
    "inverted padding": sequence_layers.find_inverted_padding,
    "padded step": sequence_layers.find_padded_steps,
    "causal mask": sequence_layers.find_causal_masks,
    "crossed": shapes.find_crossed,
    "scale": shapes.find_scales,
    "train mode": training.find_train_mode,
    "eval mode": training.find_eval_mode,
    "no step": training.find_missing_steps,
    "idle step": training.find_idle_steps,
    "discarded gradients": training.find_discarded_gradients,
    "self copy": training.find_self_copies,
    "fresh layer": training.find_fresh_layers,
    "stale optimizer": training.find_stale_optimizers,
    "not called": idle_statements.find_uncalled,
    "unused result": idle_statements.find_dropped_results,
    "lost update": idle_statements.find_lost_updates,
    "frozen attribute": idle_statements.find_attributes,
    "second name": idle_statements.find_second_names,
    "other step": idle_statements.find_other_steps,
    "early schedule": loop_source.find_early_schedules,
    "useless clip": loop_source.find_useless_clips,
    "fresh optimizer": training.find_fresh_optimizers,
    "one layer": loop_source.find_repeated_layers,
}
"""The rules that run where likely mistakes are asked for (``check=True``)."""

SILENCED: Final = "# meta: ok"
"""A comment that silences all notes of its line."""


def find_wrong(
    trace: "Trace", *, has_likely: bool = True, is_everything_own: bool = False
) -> tuple[Note, ...]:
    """Return the notes of the rules on a trace, one for each kind and line."""
    if not trace.program.n_calls:
        return ()
    try:
        with paused_collector():
            flow = Flow(trace, is_everything_own)
            found = [*run_rules(flow, "certain", CERTAIN)]
            if has_likely:
                flow.follow_axes()
                found += run_rules(flow, "likely", LIKELY)
            del flow  # so that the collector does not walk its calls
    except Exception as error:  # noqa: BLE001  the report of a cell must not fail
        text = f"programs that run and are wrong were not looked for: {error!r}"
        return (Note(kind="unchecked", text=text, line=None),)
    return tuple({(note.kind, note.line): note for note in reversed(found)}.values())


def run_rules(
    flow: Flow, severity: Severity, rules: Mapping[str, Rule]
) -> Iterator[Note]:
    """Yield the notes of some rules, without those that a comment silences."""
    for kind, find in rules.items():
        for mistake in find(flow):
            if not is_silenced(mistake):
                yield make_note(kind, severity, mistake)


def is_silenced(mistake: Mistake) -> bool:
    """Whether the line of a mistake has the comment that silences it."""
    call, position = mistake.call, mistake.call.position
    if position is None:
        return False
    numbers = {position.line, position.end_line}
    if mistake.line is not None and call.line is not None:
        numbers.add(mistake.line + position.line - call.line)
    return any(SILENCED in getline(position.file, number) for number in numbers)


def make_note(kind: str, severity: Severity, mistake: Mistake) -> Note:
    """Return the note of a mistake."""
    call = mistake.call
    line = call.line if mistake.line is None else mistake.line
    others = {other.line for other in mistake.others} | {*mistake.lines, call.line}
    lines = tuple(sorted(n for n in others if n is not None and n != line))
    return Note(
        kind=kind,
        text=mistake.text,
        line=line,
        severity=severity,
        lines=lines,
        why=mistake.why,
    )
