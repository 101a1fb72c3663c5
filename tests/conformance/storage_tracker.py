"""The storages of a real run: when each is born and freed, and what torch does with it.

Knows nothing of recordings. A storage counts from the first operator that meets it.
"""

import weakref
from collections import defaultdict

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules import module as modules
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tracking:
    """What the tracker does; a mixin, so that torch does not import dynamo."""

    def __init__(self):
        super().__init__()
        self.timeline = []
        self.births = []
        self.purposes = defaultdict(set)
        self._live = 0
        self._by_address = {}

    @property
    def peak_nbytes(self):
        """Most bytes that were alive after an operator."""
        return max((nbytes for _, nbytes in self.timeline), default=0)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for value in tree_leaves((args, kwargs or {})):
            self._meet(value, "")
        returned = func(*args, **(kwargs or {}))
        for value in tree_leaves(returned):
            self._meet(value, str(func))
        self._look_for_sizes()
        self.timeline.append((str(func), self._live))
        return returned

    def mark(self, tensor, purpose):
        """Note what the storage of a tensor is for, if that was met."""
        known = self._find(tensor)
        if known is not None:
            self.purposes[known[0]].add(purpose)

    def _find(self, tensor):
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
            return None
        storage = tensor.untyped_storage()
        known = self._by_address.get(storage._cdata)
        return known if known is not None and known[1]() is storage else None

    def _meet(self, value, op):
        if isinstance(value, Tensor) and value.layout is torch.sparse_coo:
            self._meet(value._indices(), op)
            self._meet(value._values(), op)
            return
        is_plain = isinstance(value, Tensor) and value.layout is torch.strided
        if is_plain and self._find(value) is None:
            self._add(value.untyped_storage(), op)

    def _add(self, storage, op):
        address = storage._cdata
        ref = weakref.ref(storage, lambda ref: self._drop(address, ref))
        self._by_address[address] = [len(self.births), ref, storage.nbytes()]
        self.births.append((op, storage.nbytes()))
        self._live += storage.nbytes()

    def _drop(self, address, ref):
        if self._by_address.get(address, (0, None))[1] is ref:
            self._live -= self._by_address.pop(address)[2]

    def _look_for_sizes(self):
        for known in self._by_address.copy().values():
            storage = known[1]()
            if storage is not None:
                self._live += storage.nbytes() - known[2]
                known[2] = storage.nbytes()


class StorageTracker(Tracking, TorchDispatchMode):
    """Follows the storages of what runs within it.

    Attributes:
        timeline: (operator, bytes alive right after it) of each operator.
        births: (operator that made it or "", bytes) of each storage, in order.
        purposes: What each is for, by its number, as far as it was marked.
    """


class track_purposes:
    """Have a tracker told what torch itself says of tensors.

    Autograd says what it saves, and whose gradient it accumulates; modules what they
    register; optimizers what they step, and keep. Of a saved tensor that hooks of the
    program's own pack, as checkpointing does, what they unpack counts.
    """

    def __init__(self, tracker):
        self._mark = tracker.mark
        self._hooks = saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def __enter__(self):
        parameters = modules.register_module_parameter_registration_hook
        self._handles = [
            register_optimizer_step_post_hook(self._after_step),
            parameters(lambda _, __, t: self._mark(t, "parameter")),
            modules.register_module_buffer_registration_hook(
                lambda _, __, t: self._mark(t, "buffer")
            ),
        ]
        self._hooks.__enter__()
        self._make_hooks = make = saved_tensors_hooks.__init__

        def make_marking(hooks, pack, unpack):
            make(hooks, pack, lambda packed: self._pack(unpack(packed)))

        saved_tensors_hooks.__init__ = make_marking
        self._run = run = torch.autograd.graph._engine_run_backward

        def run_and_look(roots, *args, **kwargs):
            leaves = find_leaves(roots)
            returned = run(roots, *args, **kwargs)
            for leaf in leaves:
                self._mark(leaf.grad, "gradient")
            return returned

        self._places = [torch.autograd, torch.autograd.graph]
        for place in self._places:
            place._engine_run_backward = run_and_look
        return self

    def __exit__(self, *_):
        for place in self._places:
            place._engine_run_backward = self._run
        saved_tensors_hooks.__init__ = self._make_hooks
        self._hooks.__exit__(None, None, None)
        for handle in self._handles:
            handle.remove()

    def _pack(self, tensor):
        self._mark(tensor, "saved")
        return tensor

    def _after_step(self, optimizer, *_):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._mark(parameter, "parameter")
                self._mark(parameter.grad, "gradient")
        for value in tree_leaves([*optimizer.state.values()]):
            self._mark(value, "optimizer_state")


def find_leaves(roots):
    """Return the leaves that a graph puts gradients into."""
    seen, leaves = set(), []
    stack = [
        getattr(root, "grad_fn", None) or getattr(root, "node", root) for root in roots
    ]
    while stack:
        node = stack.pop()
        if node is None or node in seen or not hasattr(node, "next_functions"):
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        stack += [following for following, _ in node.next_functions]
    return leaves
