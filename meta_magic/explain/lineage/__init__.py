"""Where a size comes from: a chain of steps back to the numbers in the user's code.

A child runs the block again with integers that know their origin (``traced_runs``,
``traced_numbers``), and keeps each call. ``size_lineages`` goes
back from a size, call by call. ``formulas`` makes a call again with other numbers to
see which of them decide the size, and by which formula.

May import ``explain``, ``trials``, ``session``, ``recording``, ``trace``,
``torch_private``, ``errors``. Read ``why`` first.
"""
