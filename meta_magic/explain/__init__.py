"""Why a recorded block failed: the operands, the rule that they broke, and repairs.

``across_cells`` joins the block with the cells that it rests on, ``explanations`` makes
the answer. ``diagnosis`` finds the cause: ``probing`` makes the failed call again in a
child, with other arguments, and ``rules`` reads from what torch accepts which rule was
broken. ``lineage/`` follows a refused size back to the numbers in the user's code.
``edits/`` writes edits that may mend the block, and ``edited_runs`` runs it with them.

May import ``trials``, ``session``, ``recording``, ``cost``, ``trace``,
``torch_private``, ``children``, ``errors``. Read ``across_cells`` first.
"""
