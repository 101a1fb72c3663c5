"""Recordings, which ``record()`` and ``%%meta`` enter, and the parts of a recording.

``recording`` makes the parts of a recording and builds the trace at its end, with
``program_builder`` and ``note_finders``. ``values_on_demand`` answers code
that asks for values, by a replay. ``guard`` leaves torch as it was, however a block
ends. ``raised_calls`` and ``failed_calls`` describe the call that ended it.

May import ``replaying``, ``recording``, ``trace``, ``torch_private``, ``errors``. Read
``recording`` in this folder first.
"""
