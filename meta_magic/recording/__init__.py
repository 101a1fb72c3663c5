"""Running code to a program, in five rooms; each imports only those above it here.

* ``identities``: numbers of tensors, storages and modules, call sites
* ``signatures``: what calls have in common, and which may be answered without a kernel
* ``rows``: what is written: operator calls, module calls, draws, constants, diagnostics
* ``as_device``: what a device would run: attention, autocast, optimizers, kernels
* ``intercept``: modes, and replacements of functions that no mode sees

``session`` puts them together. May import ``errors``, ``torch_private`` and ``trace``.
Read ``intercept/dispatch_mode`` first: every operator passes there.
"""
