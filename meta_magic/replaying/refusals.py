"""What a replay cannot rest on: what was assumed, and content that is not known."""

from collections.abc import Collection, Sequence

from meta_magic.errors import ReplayError
from meta_magic.replaying.program_calls import Call, ProgramCalls
from meta_magic.trace.derived_facts import AssumedNumbers

__all__ = ["check_assumptions", "check_given"]


def check_assumptions(recorded: ProgramCalls, calls: Sequence[Call]) -> None:
    """Refuse what rests on sizes or values that were assumed.

    Args:
        recorded: The program.
        calls: Those of its calls that are to be made.

    Raises:
        ReplayError: Something does.
    """
    if not recorded.program.assumptions:
        return
    assumptions = {a.call: a for a in recorded.program.assumptions}
    numbers = AssumedNumbers(recorded.program)
    for call in calls:
        assumption = assumptions.get(call.number)
        if assumption is not None and assumption.value is None:
            raise ReplayError(
                f"it rests on the size that {recorded.describe(call)} gives, which was "
                f"assumed ({assumption.text}) and is not known"
            )
        is_number = numbers.may_be_in(call.number, call.signature)
        source = assumption or (numbers.first if is_number else None)
        if source is not None:
            what = recorded.describe(recorded.call(source.call))
            raise ReplayError(
                f"it rests on the value that {what} gives, or may do so, which was "
                f"assumed ({source.text}) and is not known"
            )


def check_given(
    recorded: ProgramCalls, calls: Sequence[Call], given: Collection[int]
) -> None:
    """Refuse what came from outside without its content.

    Args:
        recorded: The program.
        calls: Those of its calls that are to be made.
        given: The storages that must be there before them, with their content.

    Raises:
        ReplayError: Some did.
    """
    imported = {i.storage: i for i in recorded.program.imports}
    for storage in sorted(given - recorded.constants.keys()):
        first = next((call for call in calls if storage in call.inputs), None)
        where = "" if first is None else f", read by {recorded.describe(first)},"
        if storage in imported:
            if imported[storage].is_stale:
                raise ReplayError(
                    f"a tensor of an earlier recording{where} was changed in place "
                    "outside of any recording: do that in a recorded cell, too",
                    storage,
                )
            continue
        raise ReplayError(
            f"a tensor of {recorded.nbytes_by_storage[storage]:,} bytes"
            f"{where} came from outside of the recording, on meta and so without "
            "its values (made elsewhere, or loaded from a file onto meta): make it "
            "in a recorded cell, too",
            storage,
        )
