"""Lessons and exercises: a cell asks its reader, and grades what a reader wrote.

``lines`` finds which calls each line of a recorded cell made, and the names of their
operands; ``lessons`` makes a question of a line, and the picture that answers it.

May import ``view``, ``explain``, ``trials``, ``session``, ``replaying``, ``cost``,
``trace``, ``errors``. Read ``lessons`` first.
"""
