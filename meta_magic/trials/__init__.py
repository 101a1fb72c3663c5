"""Record a block again in a child process, with other sizes, choices or text.

The child ends after its answer, so nothing that the block does to variables, modules or
torch stays; ``sandbox`` refuses files, sockets and processes. ``trial`` runs the block
and brings back an answer. ``blocks`` finds the block's syntax tree and its sizes;
``slices`` joins it with the cells that it rests on, and reads their ``statements``.
``trial_choices`` change how it runs. ``fit``, ``sweeps``,
``conditions`` and ``dims`` search sizes; ``proofs`` tries advice.

May import ``ranks``, ``session``, ``replaying``, ``recording``, ``cost``, ``trace``,
``errors``, ``children``, ``torch_private``. Read ``trial`` first.
"""
