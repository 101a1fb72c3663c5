"""Who is who: on meta addresses are 0 and ids repeat, so all that is met gets numbers.

Tensors and storages (``tensors``, ``storages``), their metadata (``geometries``) and
where the code wants them (``device_plan``), modules (``module_numbers``), places in the
source (``places``), the moment (``clock``). What lasts from one recording to the next:
which made a storage (``origins``), whether it was written since (``living_tensors``),
where generators were left (``left_generators``).
None holds a tensor alive.

May import ``torch_private`` and ``trace``. Read ``tensors`` first.
"""
