"""Show records to people: text for terminals, HTML, and the report in a browser.

``payload`` is the wire format: the live report (``widgets``) and the saved one
(``page``) draw the same JSON with the same JavaScript, in ``static``. ``charts``
makes plotly's figures for ``Trace.charts()``; the report's own charts are in
``static/charts`` and ``static/memory``. Only ``widgets`` imports ipywidgets and
anywidget.

May import ``designs``, ``materializing``, ``explain``, ``trials``, ``ranks``,
``session``, ``replaying``, ``cost``, ``trace``, ``children``, ``errors``. Read
``payload``, then ``static/data.js``, which reads it.
"""
