"""Why a recorded block failed: its operands, the rule that they broke, and repairs.

The operator is the oracle: ``probing`` makes the failed call again with something
changed, in a child process, and ``rules`` puts what is accepted into words.
``candidates`` writes that as edits of the cell, with the numbers that its expressions
stood for (``seen_numbers``), and ``repairs`` tries them. What a backward pass lacks is
found in the trace (``backward_errors``, ``backward_edits``). ``explanations`` has the
record of it all, and asks.

May import ``trials``, ``session``, ``recording``, ``cost``, ``trace``,
``torch_private``, ``errors``. Read ``explanations`` first.
"""
