"""What calls have in common, met once and then looked up.

A key (``operator_keys``) holds all that decides a result; the ``cache`` has an entry
for each (``entries``), with its plain record (``descriptions``). ``servable`` says
which calls need no kernel when they come again. A process has one cache.

May import ``identities``, ``torch_private`` and ``trace``. Read ``entries`` first.
"""
