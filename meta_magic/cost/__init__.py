"""What a recorded program costs: pure functions of a program, and records of numbers.

``costs``: FLOPs, bytes and a roofline's time, added up by phase, module and operator;
the formulas for one call are in ``trace/formulas``, the peaks of accelerators, each
with its source, in ``devices.toml``. ``memory_timeline``: the bytes alive over time, by
device and use (``storage_lives``). ``advice/``: what a program
wastes.

May import ``trace``, ``torch_private``, ``errors``. Read ``costs`` first, then
``memory_timeline``.
"""
