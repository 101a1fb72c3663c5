"""The same code for real, on the CPU: what a recording is compared with."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from meta_magic import record


def build_twice(build, *, seed=0, cache=True):
    """Return what ``build`` gives for real and in a recording, from one seed.

    Torch's generator is left as the recording leaves it; ``trace`` is on the third
    place, and the state in which the real run left the generator on the fourth.
    """
    torch.manual_seed(seed)
    real = build()
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    with record(cache=cache) as trace:
        made = build()
    return real, made, trace, state


def assert_same(run, *, seed=0, **options):
    """Compare what a function returns for real and in a recording, from one seed."""
    torch.manual_seed(seed)
    wanted = run()
    with record(**options) as trace:
        torch.manual_seed(seed)
        met = run()
    assert met == wanted, f"{met} is not {wanted}"
    return trace


def assert_refused_alike(run, **options):
    """Compare the errors that a function raises for real and in a recording."""
    torch.manual_seed(0)
    with pytest.raises(Exception) as wanted:  # noqa: PT011  of any type
        run()
    with record(**options), pytest.raises(wanted.type) as met:
        torch.manual_seed(0)
        run()
    assert str(met.value) == str(wanted.value)


def outcome(call, *given):
    """Return type and text of what a call raises, or None."""
    try:
        call(*given)
    except Exception as error:
        return type(error), str(error)
    return None


def assert_same_operators(run, *, skipped=(), **options):
    """Compare the operators that run for real, on the CPU, and in a recording."""
    with Names() as real:
        run()
    with record(as_device="cpu", **options) as trace:
        run()
    assert drop([op.op for op in trace.ops], skipped) == drop(real.ops, skipped)
    return trace


def drop(names, skipped):
    """Return the names in which nothing stands of what is skipped."""
    return [name for name in names if not any(part in name for part in skipped)]


def tensors_of(module):
    """Return parameters and buffers by name, at every place."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def assert_bit_equal(made, real):
    """Compare values, shapes, strides and dtypes of all parameters and buffers."""
    wanted, got = tensors_of(real), tensors_of(made)
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert_same_tensor(got[name], tensor, name)


def assert_same_tensor(got, wanted, name=""):
    """Compare two tensors to the bit."""
    assert (got.device, got.dtype, got.shape, got.stride(), got.requires_grad) == (
        wanted.device,
        wanted.dtype,
        wanted.shape,
        wanted.stride(),
        wanted.requires_grad,
    ), name
    assert torch.equal(got, wanted), name


def is_untouched(module, before):
    """Tell whether a module holds the very tensors of ``before``, all on meta."""
    now = tensors_of(module)
    return now.keys() == before.keys() and all(
        now[name] is tensor and tensor.is_meta for name, tensor in before.items()
    )


class Names(TorchDispatchMode):
    """Notes the names of operators, the shapes that they return, and nothing else."""

    def __init__(self):
        super().__init__()
        self.ops = []
        self.shapes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.append(str(func))
        returned = func(*args, **(kwargs or {}))
        many = returned if isinstance(returned, (tuple, list)) else [returned]
        self.shapes.append([tuple(t.shape) for t in many if is_tensor(t)])
        return returned


def is_tensor(value):
    """Tell a plain tensor, which has a shape."""
    return isinstance(value, torch.Tensor) and not value.is_nested
