"""The records of a recording, and the questions that these alone answer.

Plain data: no torch modes, no IPython, no browser. ``program`` stores what repeats once
in tables, and calls as rows of integers; ``calls`` reads them as records.
``op_columns`` and ``module_columns`` describe what tables show, once for pandas, text,
HTML and the report; ``formulas`` say what one call costs.

May import ``errors`` and ``torch_private``. Read ``program`` first, then ``trace``.
"""
