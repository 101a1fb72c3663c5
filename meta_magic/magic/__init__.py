"""``%%meta`` and ``%meta`` in notebooks; only this folder imports IPython.

``extension`` loads and unloads. ``magics`` reads a line (``line_options``), ``cell``
compiles a cell's body, ``run`` records it and shows the ``reports``. The others are
one feature each: completion, tracebacks, cells that await, ``%meta materialize``.

May import everything. Read ``magics`` first.
"""
