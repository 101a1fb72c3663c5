"""``meta-magic check``: programs recorded from a terminal, and in CI.

``commands`` reads the line, ``subjects`` what is to be checked. Each subject is run by
a child (``checked_process`` starts it, ``worker`` is what runs there) as a
``script_run``, ``function_run`` or ``notebook_run``; ``judging`` makes a record of
``verdicts`` of each recording. Verdicts are shown by ``check_text``, written by
``junit``, ``sarif`` and ``check_json``, compared with ``baselines``. The process of the
command imports no torch: only the child does.

May import everything. Read ``commands`` first.
"""
