"""The records: what a recording leaves behind, and questions that need nothing else.

Pure data: no torch modes, no IPython, no browser. What repeats stands once in tables
(``signature``), calls are columns of integers (``program``), read as records
(``calls``, ``modules``, ``notes``) by lazy sequences (``sequences``). ``columns``
describes what tables show of them, once for pandas, text, HTML and the report;
``formulas`` say what one call costs.

May import ``errors`` and ``torch_private``. Read ``program`` first, then ``trace``.
"""
