"""What meets running code.

``function_mode`` sees each call of torch's functions, ``dispatch_mode`` each operator:
a cache hit takes the fast path (``served_operators``), any other call runs its kernel
(``operator_runner``, ``kernel_calls``). What no mode sees has a file of its own, from
``initializers`` to ``copies``; so have devices that code names (``factories``,
``moves``) and what is no plain tensor. Rooms of their own have devices that are only
``planned``, ``real_tensors``, and other people's ``libraries``. Values
come through ``value_source``.

May import all other rooms of ``recording``, ``errors``, ``torch_private``, ``trace``.
Read ``dispatch_mode`` first.
"""
