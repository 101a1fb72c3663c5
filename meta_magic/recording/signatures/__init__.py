"""What calls have in common, met once and then looked up.

A key (``operator_keys``, ``function_keys``) holds all that decides a result; the
``cache`` has an entry for each (``entries``), with its plain record (``descriptions``).
``servable`` says which may be answered without their kernel, ``templates`` what whole
functions of torch do, ``learning`` finds that out. A process has one cache.

May import ``identities``, ``torch_private`` and ``trace``. Read ``entries`` first.
"""
