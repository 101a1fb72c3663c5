"""Why a recorded block failed: the operands, the rule that they broke, and repairs.

``explanations`` makes the answer of ``trace.explanation``. ``diagnosis`` finds the
cause: ``probing`` makes the failed call again in a child, with other arguments, and
``rules`` reads from what torch accepts which rule was broken. ``lineage/`` follows a
refused size back to the numbers in the user's code. ``edits/`` writes edits that may
mend the block, and ``repairs`` runs the block with each of them.

May import ``trials``, ``session``, ``recording``, ``cost``, ``trace``,
``torch_private``, ``errors``. Read ``explanations`` first.
"""
