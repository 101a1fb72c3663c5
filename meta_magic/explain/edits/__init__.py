"""Edits of a program that may mend a failed call, in families.

Each family yields edits, with what they cost, of a ``Situation``; ``candidates`` has
all of them, in order. ``program_text`` rewrites stretches, ``accepted`` and
``operand_changes`` ask the failed call what it takes.

May import ``explain``, ``trace``. Read ``candidates`` first.
"""
