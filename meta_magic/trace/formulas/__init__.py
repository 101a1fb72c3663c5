"""FLOPs and bytes of one call, as functions of its signature alone.

``call_costs`` looks up the formula. One family of operators, one file:
``product_flops`` (attention, too) and ``algorithm_flops``, each with a table of
formulas by operator; ``elementwise_flops`` has the weights of all others. They are
below the floor that adds them up (``cost``), because tables of ``trace`` show them too.

May import ``torch_private`` and, of ``trace``, ``signature``. Read ``call_costs``
first.
"""
