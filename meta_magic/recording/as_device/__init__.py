"""Run operators on meta as the CPU or CUDA would run them.

Context managers, entered with the recording: ``attention``, ``autocast`` (also of
optimizers and losses), ``composites``. Tables by operator are in ``adjustments``:
corrections (meta refuses, the CPU does not) and adjustments (meta answers differently).
``cpu_kernels`` and ``oracle/`` ask the CPU.

May import ``rows``, ``signatures``, ``identities``, ``torch_private``, ``trace``,
``children``, ``errors``. Read ``adjustments`` to mend an operator, ``composites`` to
replace one.
"""
