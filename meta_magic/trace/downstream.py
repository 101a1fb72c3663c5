"""What depends on an assumption: the operators that read what it decided."""

from meta_magic.trace.program import HEADER, Program

__all__ = ["find_assumed"]


def find_assumed(program: Program) -> dict[int, str]:
    """Return the assumption behind each call whose sizes or inputs rest on one."""
    assumed = {a.call: a.text for a in program.assumptions}
    if not assumed:
        return {}
    words = memoryview(program.words).cast("I")
    storages = memoryview(program.storage_by_tensor).cast("I")
    offsets = program.offsets
    text_by_storage: dict[int, str] = {}
    for index, number in enumerate(program.signature_numbers()):
        signature = program.signatures[number]
        start = offsets[index] + HEADER
        split = start + len(signature.inputs)
        read = [storages[word] for word in words[start:split]]
        found = assumed.get(index) or next(
            (text_by_storage[s] for s in read if s in text_by_storage), None
        )
        if found is None:
            continue
        assumed[index] = found
        made = [storages[word] for word in words[split : offsets[index + 1]]]
        for storage in (*made, *(read[i] for i in signature.writes)):
            text_by_storage.setdefault(storage, found)
    return assumed
