"""Lessons and exercises: a cell asks its reader, and grades what a reader wrote.

``lines`` finds which calls each line of a recorded cell made, and the names of their
operands; ``lessons`` makes a question of a line, and the picture that answers it.
``exercises`` grades an answer: ``answer_runs`` runs it in a child process, ``causes``
compares its results with the right ones, and finds the call that makes them wrong.
It reads the exercises of notebooks, and builds and grades those of a class.

May import ``view``, ``explain``, ``trials``, ``session``, ``replaying``, ``recording``,
``cost``, ``trace``, ``children``, ``errors``. Read ``lessons`` and ``exercises`` first.
"""
