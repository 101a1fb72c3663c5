"""Make a module on meta real, in place: ``mm.materialize(model)``.

``materialize`` checks its arguments and chooses what else becomes real, ``preparation``
makes the content and puts it below the tensors, ``report`` says what happened.
``fills`` has one source of content for each ``init=``. Read ``materialize`` first.

May import errors, torch_private, trace, recording, replaying and session; never view or
magic.
"""
