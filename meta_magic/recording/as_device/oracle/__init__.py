"""What the CPU refuses: its own operators are asked, once for each signature.

A small call runs on ``stand_ins``; a large one is shrunk (``shrinking``), and whatever
is refused then, or was refused on meta, is confirmed at its true sizes in a ``child``.
``value_words`` tells what metadata cannot decide.

May import ``recording``'s ``identities`` and ``signatures``, ``torch_private``.
Read ``oracle`` first.
"""
