"""The operator cache: signatures of calls by their keys.

A key holds everything that decides a result. The ``cache`` makes keys, has one entry
(``entries``) for each, and decides which calls need no kernel on a cache hit.
A process has one cache.

May import ``identities``, ``torch_private`` and ``trace``. Read ``entries`` first.
"""
