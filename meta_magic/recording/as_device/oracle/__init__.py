"""What the CPU refuses: its own operators are asked, once for each signature.

A small call runs on ``stand_ins``; a large one is shrunk (``shrinking``), and whatever
is refused then, or was refused on meta, is confirmed at its true sizes in a ``child``.
``value_words`` tells what metadata cannot decide; ``refused_calls`` says which calls
of a recording are asked about, ``known_operands`` asks with values.

May import ``recording``'s ``identities`` and ``signatures``, and the ``cpu_kernels``
beside it, ``errors``, ``torch_private``, ``trace``.
Read ``oracle`` first.
"""
