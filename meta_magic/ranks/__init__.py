"""A script recorded as several ranks of a world, each in a child, side by side.

``nursery`` runs one function for several ranks: it imports torch once, and forks a
child for each. ``recorded_ranks`` is ``mm.record_ranks``, and finds hangs:
collectives that differ between ranks.

May import ``session``, ``replaying``, ``recording``, ``cost``, ``trace``,
``torch_private``, ``errors``. Read ``recorded_ranks`` first.
"""
