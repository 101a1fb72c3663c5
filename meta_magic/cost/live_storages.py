"""What is alive at one moment of a program: its storages, by module and by line.

``trace.memory.peak`` and ``trace.memory.at(index)`` are ``describe_live``.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from meta_magic.cost.storage_categories import CATEGORIES, Category, find_categories
from meta_magic.trace.units import format_bytes

if TYPE_CHECKING:
    import pandas as pd

    from meta_magic.cost.program_columns import Columns, Integers
    from meta_magic.cost.storage_lives import Lives
    from meta_magic.trace.modules import ModuleNode
    from meta_magic.trace.program import Program

Key = TypeVar("Key")


@dataclass(frozen=True, kw_only=True, eq=False)
class StorageTable:
    """The storages of a program: when each is alive, where, and what for.

    Attributes:
        program: The program, with the call that raised.
        device: The index into ``devices`` of each storage's device.
    """

    program: "Program"
    modules: tuple["ModuleNode", ...]
    columns: "Columns"
    lives: "Lives"
    device: "Integers"
    devices: tuple[str, ...]

    @cached_property
    def category(self) -> "Integers":
        """The index of each storage's category."""
        return find_categories(self.program, self.modules, self.columns, self.lives)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStorage:
    """One storage that is alive.

    Attributes:
        storage_id: Its number, as in ``TensorMetadata.storage_id``.
        nbytes: Its bytes at that moment.
        category: What it is for.
        place: Its device.
        index: The call that made it; if it is older than the recording, the first call
            that read it; None if no call did.
        op: The operator of that call, or None.
        root: Index into ``Trace.modules`` of the tree of its module, or None.
        module: fqn of the module that owns it, or in which it was made; None outside
            of modules.
        line: Line of the cell that made it, or None.
    """

    storage_id: int
    nbytes: int
    category: Category
    place: str
    index: int | None
    op: str | None
    root: int | None
    module: str | None
    line: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStorages:
    """All storages that are alive right after one operator call.

    Attributes:
        index: The call; None for a program without calls.
        storages: The storages, the largest first.
    """

    index: int | None
    storages: tuple[LiveStorage, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all storages."""
        return sum(storage.nbytes for storage in self.storages)

    @property
    def by_category(self) -> Mapping[Category, int]:
        """Bytes of each category, the largest first."""
        return self._sum_by(lambda storage: storage.category)

    @property
    def by_place(self) -> Mapping[str, int]:
        """Bytes on each device, the largest first."""
        return self._sum_by(lambda storage: storage.place)

    @property
    def by_module(self) -> Mapping[tuple[int, str] | None, int]:
        """Bytes by module: (root, fqn), or None; the largest first."""
        return self._sum_by(
            lambda storage: (
                None
                if storage.root is None or storage.module is None
                else (storage.root, storage.module)
            )
        )

    @property
    def by_line(self) -> Mapping[int | None, int]:
        """Bytes made by each line of the cell, the largest first; None for no line."""
        return self._sum_by(lambda storage: storage.line)

    def _sum_by(self, find_key: Callable[[LiveStorage], Key]) -> dict[Key, int]:
        sums: Counter[Key] = Counter()
        for storage in self.storages:
            sums[find_key(storage)] += storage.nbytes
        return {key: nbytes for key, nbytes in sums.most_common() if nbytes}

    def __repr__(self) -> str:
        parts = [f"{name} {format_bytes(n)}" for name, n in self.by_category.items()]
        where = "nowhere" if self.index is None else f"after operator {self.index:,}"
        return f"<LiveStorages: {', '.join(parts) or 'none'} {where}>"

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row per storage, columns named as its fields."""
        import pandas as pd  # noqa: PLC0415  0.3 s, on first use

        names = [field.name for field in fields(LiveStorage)]
        rows = [tuple(getattr(s, name) for name in names) for s in self.storages]
        frame = pd.DataFrame(rows, columns=names)
        return frame.astype(dict.fromkeys(("index", "root", "line"), "Int64"))


def describe_live(table: StorageTable, index: int | None) -> LiveStorages:
    """Return the storages that are alive right after a call; none for None."""
    if index is None:
        return LiveStorages(index=None, storages=())
    lives = table.lives
    is_alive = (lives.start <= index) & (lives.stop > index) & (lives.nbytes > 0)
    alive = np.flatnonzero(is_alive)
    alive = alive[np.argsort(-lives.nbytes[alive], kind="stable")]
    owner_by_storage = dict(table.program.owner_by_storage)
    storages, nbytes = lives.storage[alive].tolist(), lives.nbytes[alive].tolist()
    return LiveStorages(
        index=index,
        storages=tuple(
            describe_storage(table, storage, size, owner_by_storage.get(storage))
            for storage, size in zip(storages, nbytes, strict=True)
        ),
    )


def describe_storage(
    table: StorageTable, storage: int, nbytes: int, owner: int | None
) -> LiveStorage:
    """Return the record of one storage, given its owner: a module number or None."""
    program, columns = table.program, table.columns
    first = int(table.lives.first_tensor[storage])
    call = None if first < 0 else int(columns.call[first])
    module = -1 if call is None else int(columns.module[call])
    module = module if owner is None else owner
    root, fqn = (None, None) if module < 0 else program.modules[module][:2]
    site = -1 if call is None else int(columns.call_site[call])
    signature = None if call is None else int(columns.signature[call])
    return LiveStorage(
        storage_id=storage,
        nbytes=nbytes,
        category=CATEGORIES[table.category[storage]],
        place=table.devices[table.device[storage]],
        index=call,
        op=None if signature is None else program.signatures[signature].op,
        root=root,
        module=fqn,
        line=None if site < 0 else program.call_sites[site].line,
    )
