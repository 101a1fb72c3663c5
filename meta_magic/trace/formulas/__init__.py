"""FLOPs and bytes of one call, as functions of its signature alone.

One family of operators, one file: ``matrix_flops``, ``convolution_flops`` and so on,
each with a table of formulas by the operator's name. ``elementwise_flops`` has the
weights of what computes element by element, ``traffic`` the bytes. They lie below the
floor that adds them up (``cost``), because the tables of ``trace`` show them, too.

May import ``torch_private`` and, of ``trace``, ``signature``. Read ``operations``
first.
"""
