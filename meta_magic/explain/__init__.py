"""Why a recorded block failed: the call, its operands, and the rule that it broke.

``probing`` makes the failed call again with something changed, in a child process;
``rules`` puts what is accepted into words; ``explanations`` has the record of it all,
and asks.

May import ``session``, ``recording``, ``trace``, ``torch_private``. Read
``explanations`` first.
"""
