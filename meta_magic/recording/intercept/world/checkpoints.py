"""Leave out a checkpoint of a world that would be wrong, before a file is opened.

torch.distributed.checkpoint opens its files, and then asks for the values: a refusal
would come when an earlier checkpoint is destroyed already. Read :class:`Checkpoints`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from meta_magic.errors import MissingValueError, WorldError
from meta_magic.recording.identities.call_sites import TakeNote
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.intercept.saving import NOT_WRITTEN
from meta_magic.torch_private.distributed import find_saver, list_ranks, local_of
from meta_magic.torch_private.replacing import Replacements
from meta_magic.torch_private.tensor_internals import is_on_meta
from meta_magic.trace.world import describe_ranks

SAVE = "torch.distributed.checkpoint.save"


class Checkpoints(Replacements):
    """Checks what is saved, within the block.

    Args:
        recorded: The ranks that are recorded at the same time.
        check: Raises if the values of meta tensors rest on other ranks; takes the
            tensors, and what saves them.
    """

    def __init__(
        self,
        recorded: frozenset[int],
        check: Callable[[list[Tensor], str], None],
        note: TakeNote,
    ) -> None:
        super().__init__()
        self._recorded = recorded
        self._check = check
        self._note = note

    def __enter__(self) -> None:
        module, name = find_saver()
        self.replace_here(module, {name: self._save})

    def _save(
        self,
        plain: Callable[..., Any],
        state_dict: Mapping[str, Any],
        storage_writer: Any,
        process_group: Any = None,
        coordinator_rank: int = 0,
        no_dist: bool = False,  # noqa: FBT001, FBT002  torch's signature
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        try:
            self._check_all(state_dict, [] if no_dist else list_ranks(process_group))
        except (MissingValueError, WorldError) as error:
            self._note("save", NOT_WRITTEN.format(error))
            return None
        given = state_dict, storage_writer, process_group, coordinator_rank, no_dist
        return plain(*given, *args, **kwargs)

    def _check_all(self, state_dict: Mapping[str, Any], ranks: Iterable[int]) -> None:
        """Raise if a rank that takes part, or what another one sends, is not known."""
        missing = sorted({*ranks} - self._recorded)
        if missing:
            raise WorldError(
                f"{SAVE} needs what each rank holds, and ranks "
                f"{describe_ranks(missing)} are not recorded: record all, as by "
                'record_ranks(..., ranks="all"), or run the script under torchrun'
            )
        held = map(local_of, tensors_in(state_dict))  # of a DTensor its shard
        self._check([*filter(is_on_meta, held)], SAVE)
