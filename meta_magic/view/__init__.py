"""Records to what people see: text for terminals, HTML, and the report in a browser.

``payload`` is the one wire format: the live report (``widgets``) and the saved one
(``page``) draw the same JSON with the same JavaScript, which lies in ``static``.
``charts`` are what ``Trace.charts()`` shows, and alone know of plotly (those of the
report are drawn by ``static/charts`` and ``static/memory``), ``widgets`` alone of
ipywidgets and anywidget.

May import ``materializing``, ``explain``, ``trials``, ``session``, ``replaying``,
``cost``, ``trace``, ``errors``. Read ``payload`` first, then ``static/data.js``, which
reads it.
"""
