"""What a recording writes, each part a column or a table of the program.

Operator calls (``row_writer``), module calls (``module_calls``) and trees
(``module_trees``), random numbers (``draws``), content that came from outside
(``constants``), and all else; ``writers`` has the record of them all.

May import ``signatures``, ``identities``, ``torch_private`` and ``trace``. Read
``row_writer`` first.
"""
