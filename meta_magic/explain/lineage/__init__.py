"""Where a size comes from: a block run again with numbers that know their origin.

``traced_block`` rewrites it, ``observed_calls`` sees its calls, ``size_lineages`` goes
back from a size, call by call: ``dependence`` finds which numbers decide it, by trying
others, and ``formulas`` how. What cannot be tried so, ``perturbing`` sees by running
the whole block with other numbers.

May import ``explain``, ``trials``, ``session``, ``recording``, ``trace``,
``torch_private``, ``errors``. Read ``why`` first.
"""
