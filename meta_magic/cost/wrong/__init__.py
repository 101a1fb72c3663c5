"""Find programs that run and are wrong, from their records alone.

``F.mse_loss(net(x), y)`` of ``(8, 1)`` and ``(8,)`` raises nothing and trains nothing.
``mistakes`` has the table of all rules. Each is a pure function of a ``Flow``: the
calls of a program, which call made each operand, and which dimensions are the same
(``axes``). A false note is worse than a missed one: what may be meant is not noted.

May import ``cost``, ``trace``. Read ``mistakes`` first, then ``axes``.
"""
