"""What meets running code.

``function_mode`` meets each call of torch's functions, ``dispatch_mode`` each operator:
seen before, it is served (``served_functions``, ``served_operators``), else run
(``operator_runner``, ``kernel_calls``). What no mode sees has a file of its own, from
``initializers`` to ``copies``; so have real tensors (``lifting``, ``lending``), what is
no plain tensor (``special_tensors``), and other people's libraries in ``libraries``.
Where the code names a device, ``factories`` and ``moves`` plan it, ``device_questions``
answers, and ``planned_devices`` stands for what is not there.
Values come from above, through ``value_source``.

May import all other rooms of ``recording``, ``errors``, ``torch_private``, ``trace``.
Read ``dispatch_mode`` first.
"""
