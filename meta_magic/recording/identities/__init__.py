"""Numbers for tensors, storages, modules and call sites, on meta and across cells.

On meta all addresses are 0 and ids repeat, so all that is seen gets a number: tensors
(and their metadata) and storages (``tensors``, ``storages``). The line that made a call
is in ``call_sites``, planned devices are in ``device_plan``. Three facts are carried
over from one recording to the next: which recording made a storage and whether it was
written since (``origins``), and the states of generators (``generator_carryover``).
Nothing here holds a tensor alive.

May import ``torch_private`` and ``trace``. Read ``tensors`` first.
"""
