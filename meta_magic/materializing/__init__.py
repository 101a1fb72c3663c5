"""A module on meta to a real one: ``mm.materialize``.

``materialize`` finds out what is asked for, ``preparation`` does it: make the content,
put it below the tensors, report. What makes content is one class each in ``fills``, and
``fills/inits`` says which ``init=`` is which. Read ``fills/protocol`` first.

May import errors, torch_private, trace, recording, replaying and session; never view or
magic.
"""
