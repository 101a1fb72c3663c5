"""What a recorded program costs: pure functions of a program, and records of numbers.

Memory over time: the columns of a program (``program_columns``), from when to when each
storage has how many bytes (``storage_lives``), and what it is for
(``storage_categories``).

May import ``trace``, ``torch_private``, ``errors``. Read ``memory_timeline`` first.
"""
