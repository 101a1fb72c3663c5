"""Which storages lie on meta because the code named it, as they do on the CPU, too.

``with torch.device("meta"): model = build()`` takes no memory, nor does what comes of
it, until ``to_empty`` or a move puts it on a device.
"""

from meta_magic.trace.program import HEADER, Program

__all__ = ["find_on_meta"]


def find_on_meta(program: Program) -> set[int]:
    """Return the storages that lie on meta by name, or are computed from such ones.

    None does where the kernels of meta are recorded: there all lies on it.
    """
    found = {*program.facts.on_meta}
    if not found or program.as_device == "meta":
        return set()
    words = memoryview(program.words).cast("I")
    storage_by_tensor = memoryview(program.storage_by_tensor).cast("I")
    for index, number in enumerate(program.signature_numbers()):
        signature = program.signatures[number]
        start, end = program.offsets[index] + HEADER, program.offsets[index + 1]
        storages = [storage_by_tensor[tensor] for tensor in words[start:end]]
        inputs = storages[: len(signature.inputs)]
        if not found.isdisjoint(inputs):
            made = zip(storages[len(inputs) :], signature.outputs, strict=True)
            unnamed = [storage for storage, g in made if g.place is None]
            found.update(set(unnamed).difference(inputs))
    return found
