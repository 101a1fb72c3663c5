"""Edits of the user's code that may mend a failed call.

Each file is a family: functions that yield edits of a ``Situation``, with their costs.
``program_text`` rewrites the text; ``accepted`` asks the failed call which other
numbers and operands it accepts.

May import ``explain``, ``session``, ``trace``. Read ``situations`` first.
"""
