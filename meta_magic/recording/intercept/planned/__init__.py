"""What torch answers of devices that are only planned.

``cuda`` and ``tensor_types`` stand for GPUs and types that this machine lacks,
``default_devices`` for what has torch make tensors elsewhere, ``training`` for what
trains on several of them, ``fast_paths`` for what modules choose by the device. Each
replaces functions while a recording runs; ``planned_devices`` enters them all.

May import ``recording``'s ``identities`` and ``intercept``, ``torch_private``,
``errors``.
Read ``planned_devices`` first.
"""
