"""A block recorded as one process of a world that is not there.

Without this ``dist.init_process_group("nccl")`` in a cell fails. ``planned_world``
gives the block torchrun's environment, and process groups that send nothing.
``torch_on_meta`` replaces what torch.distributed and DTensor do wrongly on meta;
``messages`` hands small values between processes that are recorded at the same time.
Nothing here, and nothing of torch.distributed, is imported for a block without a world.

May import ``recording``'s ``identities``, ``torch_private``, ``trace``, ``errors``.
Read ``planned_world`` first.
"""
