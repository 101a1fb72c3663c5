"""What fills the tensors of a module: one file for each ``init=``.

``protocol`` has what materialize asks of a filling, ``inits`` which ``init=`` is which.
A new one: a class here that has all of ``protocol.Fill``, and its row in ``inits``; one
that wraps another hands on all that the other says. Read ``protocol`` first.

May import what ``materializing`` may (errors, torch_private, trace, recording,
replaying), and of that all but ``materialize`` and ``preparation``.
"""
