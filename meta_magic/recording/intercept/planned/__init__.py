"""Devices that the code names and this machine may lack: planned devices.

Without this ``torch.cuda.get_device_name()`` in a cell would fail on a laptop. Each
class replaces functions of torch while a recording runs: ``gpu_types`` the streams,
events and tensor types of ``torch.cuda``, seeds and generators.
``planned_devices`` enters all of them, and replaces functions of ``torch.cuda`` and
what modules and ``GradScaler`` ask.

May import ``recording``'s ``identities``, ``rows`` and ``intercept``,
``torch_private``, ``trace``, ``errors``. Read ``planned_devices`` first.
"""
