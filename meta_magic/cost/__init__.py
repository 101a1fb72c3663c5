"""What a recorded program would cost: FLOPs, bytes, and a roofline's time on a device.

Reads programs and runs nothing. What one call costs is a formula of its signature, in
``trace/formulas``; here they are added up by phase, module and operator.
``devices.toml`` has the peaks of accelerators, each with its source.

May import ``trace`` and ``errors``. Read ``costs`` first.
"""
