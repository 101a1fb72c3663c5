"""A recording put together, and what its user enters.

``record`` is the context manager, ``recording`` what stands behind it and the magic: it
makes the parts one after another, gives each what it needs, and builds the trace
(``program_builder``, ``trees``, ``note_finders``). ``values_on_demand`` answers code
that asks for values, by replaying; ``guard`` leaves torch as it was, however a block
ends; ``raised_calls`` finds what ended it, ``shown_frames`` what to show of the error.

May import ``replaying``, ``recording``, ``trace``, ``torch_private``, ``errors``. Read
``recording`` first.
"""
