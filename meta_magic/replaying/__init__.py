"""Replay a recorded program, or a slice of it, on real tensors.

``loss.item()``, ``materialize()``, ``replay()`` and ``verify()`` all end here.
``program_calls`` reads the program, ``plan`` walks back from the wanted storages to the
calls that make them, ``execution`` runs the plans over ``call_runner`` and ``streams``
(random generators). ``evaluator`` answers values in the middle of a recording: ``kept``
has what earlier replays made, ``value_budget`` decides what a value may take, and
``loop_values`` runs loops of small calls without a plan.

May import ``recording``, ``trace``, ``torch_private``, ``errors``. Read
``plan`` first.
"""
