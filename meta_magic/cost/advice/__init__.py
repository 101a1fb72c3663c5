"""Find what a recorded program wastes, and say how to prevent it.

``advisors`` has the table of all rules. Each rule is a pure function of the evidence: a
program, and its memory over time. What a user may intend is not reported.

May import ``cost``, ``trace``. Read ``advisors`` first.
"""
