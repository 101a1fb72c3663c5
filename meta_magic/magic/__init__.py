"""The door: ``%%meta`` and ``%meta``, and the only room that imports IPython.

``extension`` loads and unloads, ``magics`` parses a line (``line_options``), ``cell``
compiles a body, ``run`` records it with a ``progress`` line and shows the ``reports``.
``torch_versions`` says which torch was tested.

May import everything. Read ``magics`` first.
"""
