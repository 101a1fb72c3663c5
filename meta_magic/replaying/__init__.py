"""A recorded program, or a slice of it, to real tensors.

``program_calls`` reads the columns call by call, ``plan`` walks back from what is
wanted to the calls that make it, ``execution`` runs the plans of a recording and of
those before it, a ``part`` each, over ``call_runner`` (one call), ``memory`` and
``streams`` (generators). On top: ``replay``, ``verify``, and
``evaluator`` for values in the middle of a recording: what a replay leaves is ``kept``
for the next, for which ``followers`` are brought along; ``value_budget`` decides what a
value may take, and ``loop_values`` runs loops of small calls forward, without a plan.

May import ``recording``, ``trace``, ``torch_private``, ``errors``. Read ``plan`` first.
"""
