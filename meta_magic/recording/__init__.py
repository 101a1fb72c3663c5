"""Running code to a program: five rooms, each imports only from those listed before it.

* ``identities``: numbers of tensors, storages and modules, call sites
* ``signatures``: what calls have in common, and which calls need no kernel
* ``rows``: the records: operator calls, module calls, draws, constants, diagnostics
* ``as_device``: the operators that a device would run: attention, autocast, kernels
* ``intercept``: modes, and replacements of functions that no mode sees

``session`` puts them together. May import ``children``, ``errors``, ``torch_private``,
``trace``.
Read ``intercept/dispatch_mode`` first: it sees every operator.
"""
