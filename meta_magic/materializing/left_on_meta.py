"""Say what was not made real with a module; let optimizers forget what was not."""

from collections.abc import Iterator, Sequence

from meta_magic.materializing.companions import list_optimizers
from meta_magic.materializing.fills.protocol import Task
from meta_magic.materializing.report import format_names
from meta_magic.materializing.targets import Held
from meta_magic.materializing.walk import walk
from meta_magic.session.operand_names import read_attributes

__all__ = ["describe"]


def describe(task: Task, n_gradients: int) -> Iterator[str]:
    """Yield what the user should know of what is not as after the cell.

    Args:
        task: What was made real.
        n_gradients: How many gradients there are no more.
    """
    if n_gradients:
        yield f"{n_gradients:,} gradients were dropped"
    yield from forget_states(task)
    yield from describe_left(task.left)


def describe_left(left: Sequence[tuple[Held, str]]) -> list[str]:
    """Return in words why tensors are left on meta, each reason once."""
    names: dict[str, list[str]] = {}
    for held, why in left:
        names.setdefault(why, []).append(held.name)
    return [f"left on meta: {format_names(n)}: {why}" for why, n in names.items()]


def forget_states(task: Task) -> Iterator[str]:
    """Let optimizers forget what their steps left on meta.

    Yields:
        What they forgot, in words.
    """
    forgotten = {id(place.tensor) for place in task.forgotten}
    if not forgotten:
        return
    parameters = [place.tensor for place in task.held]
    for optimizer in list_optimizers(parameters):
        state: dict[object, object] = read_attributes(optimizer)["state"]
        keys = [
            key
            for key, value in state.items()
            if any(id(tensor) in forgotten for _, tensor in walk(value))
        ]
        for key in keys:
            del state[key]
        if keys:
            yield (
                f"the state of {type(optimizer).__name__} was cleared: what its steps "
                "left belongs to other values of the parameters"
            )
