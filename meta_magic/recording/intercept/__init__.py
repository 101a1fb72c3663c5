"""See what running code does, and hand it to the rows.

``function_mode`` sees each call of torch's functions, ``dispatch_mode`` each operator:
a cache hit takes the fast path, any other call runs its kernel (``kernel_calls``).
Calls that no mode sees have a file for each subject, such as ``moves`` and ``saving``.
``planned`` replaces functions of devices that do not exist here,
``real_tensors`` puts real tensors on meta.

May import all other rooms of ``recording``, ``errors``, ``torch_private``, ``trace``.
Read ``dispatch_mode`` first.
"""
