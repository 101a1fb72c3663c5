"""A script recorded as several processes of a world, each in a child, side by side.

``nursery`` runs one function for several ranks: it imports torch once, and forks a
child for each. ``recorded_ranks`` is ``mm.record_ranks``, and finds hangs: where
processes call other collectives than the others.

May import ``session``, ``recording``, ``cost``, ``trace``, ``errors``. Read
``recorded_ranks`` first.
"""
