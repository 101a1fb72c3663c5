"""Real tensors and real models that are used with meta tensors.

A real tensor that is only read becomes a captured constant (``captured_constants``). A
real module that is called, and a leaf that wants a gradient, are borrowed: they are on
meta until the cell ends (``borrowed_modules``). ``capturable`` decides between the two,
and names real tensors in notes and errors.

May import all other rooms of ``recording``, ``errors``, ``torch_private``, ``trace``.
Read ``captured_constants`` first.
"""
