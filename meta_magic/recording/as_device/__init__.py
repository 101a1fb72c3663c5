"""What a device would run, on meta: the CPU's or CUDA's kernels, without either.

A context manager for each subject, entered with the recording: ``attention`` (by
``attention_rules``), ``composites``, ``autocast``, ``optimizers``, ``meta_kernels``.
And two tables by operator: ``corrections`` (meta refuses, the CPU does not) and
``adjustments`` (meta answers, but otherwise than the device). ``cpu_kernels`` asks the
CPU. May import ``signatures``, ``identities``, ``torch_private``, ``trace`` and
``errors``. Read ``corrections`` to mend an operator, ``composites`` to replace one.
"""
