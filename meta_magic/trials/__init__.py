"""Record a block again in a child process, with other sizes, choices or text.

The child ends after its answer, so nothing that the block does to variables, modules or
torch stays; ``sandbox`` refuses files, sockets and processes. ``trial`` runs the block
and brings back the answer to a question. ``blocks`` finds the block's syntax tree and
its sizes. ``trial_choices`` changes torch, as ``trace.fit(choices=...)`` asks;
``accumulation`` splits a batch. ``conditions`` finds sizes that fail. ``fit`` and
``growth`` search sizes by ``recordings``; ``proofs`` tries advice; ``real_runs`` runs a
block for real, as a rank of torchrun.

May import ``ranks``, ``session``, ``replaying``, ``recording``, ``cost``, ``trace``,
``errors``, ``torch_private``. Read ``trial`` first.
"""
