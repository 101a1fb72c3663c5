"""What fills the tensors of a module: one source of content for each ``init=``.

``protocol`` has the methods of a fill, ``inits`` the fill of each ``init=``. A new one
is a class here (most inherit from ``protocol.EmptyFill``) and a row in ``inits``. Read
``protocol`` first.

May import what ``materializing`` may (errors, torch_private, trace, recording,
replaying), and of that all but ``materialize`` and ``preparation``.
"""
