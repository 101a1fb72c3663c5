"""Two designs side by side: what a block builds and costs, and what another changes.

``design`` reads a trace into a small record that can be pickled, and says which module
of one design is which of the other; ``differences`` lists what differs, for
``mm.diff``, the sliders of the report and ``meta-magic diff``. ``diff`` also compares
the names and shapes of a model with those of a checkpoint.

May import ``materializing``, ``trials``, ``trace``, ``errors``. Read ``diff`` first.
"""
