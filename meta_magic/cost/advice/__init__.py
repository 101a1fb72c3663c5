"""What a recorded program wastes, and what would mend it.

``advisors`` has the table of all that is looked for. Each is found by a file of its
own, a pure function of the evidence: a program, and its memory over time. What may be
meant so is left out.

May import ``cost``, ``trace``. Read ``advisors`` first.
"""
