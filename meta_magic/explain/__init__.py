"""Why a recorded block failed: its operands, the rule that they broke, and repairs.

The operator is the oracle: ``probing`` makes the failed call again with something
changed, in a child, and ``rules`` says what is accepted. ``lineage/`` goes back from a
refused size to the numbers that the block says, ``edits/`` writes what may mend it, and
``repairs`` tries that. ``diagnosis`` puts these together, ``explanations`` asks.

May import ``trials``, ``session``, ``recording``, ``cost``, ``trace``,
``torch_private``, ``errors``. Read ``explanations`` first.
"""
