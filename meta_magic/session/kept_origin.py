"""Remember a program for as long as something that it made lives."""

import weakref
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain

from torch import nn

from meta_magic.recording.identities.left_versions import look_for_versions
from meta_magic.recording.identities.origins import Origin, keep_origins
from meta_magic.recording.identities.storages import StorageRef
from meta_magic.recording.rows.module_trees import Tree, read_versions
from meta_magic.session.program_builder import Written
from meta_magic.trace.program import Program

__all__ = ["keep_origin"]


def keep_origin(
    write: Written,
    program: Program,
    trees: Sequence[Tree],
    living: Mapping[int, nn.Module],
    namespace: Mapping[str, nn.Module],
) -> None:
    """Remember a program for as long as something that it made lives.

    Args:
        write: What its recording wrote.
        program: It.
        trees: Its module trees.
        living: Modules by their number.
        namespace: The modules that variables hold.
    """
    refs = write.registry.living()
    versions = dict(chain.from_iterable(tree.versions.items() for tree in trees))
    roots = {id(living.get(tree.number)) for tree in trees}
    for module in (m for m in namespace.values() if id(m) not in roots):
        versions |= read_versions(write.registry, module)
    aliased = frozenset(write.registry.aliased)
    if write.imports.aliased:
        aliased |= write.imports.aliased & program.n_writes_by_storage.keys()
    counters = look_for_versions(program, refs, aliased, versions)
    owned = set[int]().union(*(tree.owner_by_storage for tree in trees))
    origin = Origin(
        program=program,
        generator_state=write.draws.state_left(),
        modules=dict(zip(living, map(weakref.ref, living.values()), strict=True)),
        versions=versions,
        aliased=aliased,
        counters=counters,
        places={r.number: r.place for r in refs if r.place is not None},
        checksums=write.constants.sum_made(ref for ref in refs if ref.number in owned),
    )
    refs = list_changed(program, refs, aliased)
    origin.met = write.registry.list_tensors({ref.number for ref in refs})
    keep_origins(origin, refs)


def list_changed(
    program: Program, refs: list[StorageRef], aliased: AbstractSet[int]
) -> list[StorageRef]:
    """Return the storages but those that were only read.

    These are as they were made, by the same tensors.
    """
    passed = {imported.storage for imported in program.imports}
    if passed:
        passed -= program.n_writes_by_storage.keys() | aliased
    if not passed:
        return refs
    return [ref for ref in refs if ref.number not in passed]
