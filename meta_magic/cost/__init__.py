"""What a recorded program costs: pure functions of a program, and records of numbers.

Memory over time: the columns of a program (``program_columns``), which storage has how
many bytes from when to when (``storage_lives``), what it is for (``storage_categories``).

May import ``trace``, ``torch_private``, ``errors``. Read ``memory_timeline`` first.
"""
