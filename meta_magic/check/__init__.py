"""``meta-magic check``: run programs on meta from a terminal or in CI.

``commands`` reads the command line. Each script, notebook or function runs in a child
process: ``checked_process`` has both of its ends, ``block_run`` records the code.
``judging`` turns each recording into the ``records`` that ``outputs`` writes and
``baselines`` compares. The parent process never imports torch.

May import everything. Read ``commands`` first.
"""
