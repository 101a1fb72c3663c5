"""A recorded block is run and recorded again, with other numbers or another text.

Always in a child process, where all that it does to variables, modules and torch is
lost, and where ``sandbox`` and ``file_locks`` refuse it files, sockets and processes.
``trial`` asks a question of such a recording and brings the answer back; ``blocks``
finds the block's syntax tree, ``sizes`` gives names in it other values. ``fit`` looks
for the sizes that fit a device, ``growth`` for what a panel draws, both by
``recordings``; ``what_ifs`` chooses otherwise; ``proofs`` shows what advice
saves, by ``changes``.

May import ``session``, ``recording``, ``cost``, ``trace``, ``errors``. Read ``trial``
first.
"""
