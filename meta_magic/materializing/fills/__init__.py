"""What fills the tensors of a module: one source of content for each ``init=``.

``protocol`` has what materialize asks of a fill, ``inits`` which ``init=`` is which. A
new one is a class here with all members of ``protocol.Fill``, and a row in ``inits``.
Read ``protocol`` first.

May import what ``materializing`` may (errors, torch_private, trace, recording,
replaying), and of that all but ``materialize`` and ``preparation``.
"""
