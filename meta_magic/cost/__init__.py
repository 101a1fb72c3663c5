"""What a recorded program costs: pure functions of a program, and records of numbers.

FLOPs, bytes and a roofline's time (``costs``): what one call costs is a formula of its
signature, in ``trace/formulas``; here they are added up by phase, module and operator.
``devices.toml`` has the peaks of accelerators, each with its source.

Memory over time (``memory_timeline``): from when to when each storage has how many
bytes (``storage_lives``), and what it is for (``storage_categories``);
``interpolation`` has the bytes at sizes that were not recorded. ``advice/`` has what
a program wastes.

May import ``trace``, ``torch_private``, ``errors``. Read ``costs`` first, then
``memory_timeline``.
"""
