"""Ask the CPU's own operators whether they refuse a call, once for each signature.

A small call runs on ``proxy_tensors``; a large one is made smaller, and what is refused
then is asked again at its true sizes, in a child process. ``cpu_refusals`` decides
which calls of a recording are asked about.

May import ``recording``'s ``identities`` and ``signatures``, ``cpu_kernels`` beside it,
``children``, ``errors``, ``torch_private``, ``trace``. Read ``oracle`` first.
"""
