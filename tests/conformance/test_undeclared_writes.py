"""What operators write although their schema denies it is known, of all namespaces."""

import contextlib
import warnings

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from meta_magic.recording.signatures.entries import (
    OTHERS,
    WRITING_STATISTICS,
    find_always_written,
    find_written_statistics,
)
from meta_magic.torch_private.tensor_internals import address_of_storage, is_zero_tensor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tests.conformance.operator_samples import OPERATORS

pytestmark = pytest.mark.filterwarnings("ignore")

CHECKING = {
    *(
        "aten._assert_async",
        "aten._assert_tensor_metadata",
        "aten._linalg_check_errors",
    ),
    *("aten._validate_compressed_sparse_indices", "c10d.check_for_nan"),
    *(f"aten._validate_sparse_{k}_tensor_args" for k in ("bsc", "bsr", "csc", "csr")),
    *("aten._validate_sparse_compressed_tensor_args", "prims._sink_tokens"),
    "aten._validate_sparse_coo_tensor_args",
}
WAITING = {
    *("c10d.barrier", "c10d.monitored_barrier_", "c10d.send"),
    *(
        "profiler._record_function_exit",
        "streams.record_stream",
        "streams.sync_dealloc",
    ),
    *("symm_mem.nccl_put_signal", "symm_mem.nccl_put_with_signal"),
    *("symm_mem.nccl_wait_for_signal", "symm_mem.nvshmem_wait_for_signal"),
    *("symm_mem.nvshmem_put_with_signal", "aten.record_stream"),
}
OF_COMPILED_CODE = {
    *("aten._backward", "aten.backward", "aten.dist_backward"),
    *("aten._no_grad_embedding_renorm_", "aten._propagate_xla_data"),
    *("inductor.accumulate_grad_", "inductor.resize_storage_bytes_"),
    "static_runtime.fused_equally_split",
}
"""Of TorchScript, inductor and XLA; no code that is recorded calls them."""
READ = CHECKING | WAITING | OF_COMPILED_CODE


def list_schemas():
    """Yield all that torch registers, the parts included that are imported later."""
    import torch._inductor.inductor_prims
    import torch.distributed.fsdp
    import torch.distributed.tensor

    return torch._C._jit_get_all_schemas()


def seems_to_write(schema):
    """Whether an operator of this name or without result would do nothing else."""
    name = schema.name.rpartition("::")[2]
    takes = any("Tensor" in str(argument.type) for argument in schema.arguments)
    is_named_so = name.endswith("_") and not name.endswith("__")
    return takes and (is_named_so or not schema.returns)


def test_operators_that_seem_to_write_say_what_or_are_known():
    unknown = []
    for schema in list_schemas():
        names = [argument.name for argument in schema.arguments]
        said = [a for a in schema.arguments if a.alias_info and a.alias_info.is_write]
        op = schema.name.replace("::", ".")
        full = f"{op}.{schema.overload_name or 'default'}"
        if seems_to_write(schema) and not (said or find_always_written(full, names)):
            unknown.append(op)
    of_torch = {op for op in unknown if not op.startswith("tests_")}
    assert of_torch <= READ


def test_all_that_are_known_are_registered_with_the_arguments_that_they_write():
    known = {}
    for schema in list_schemas():
        op = f"{schema.name.replace('::', '.')}.{schema.overload_name or 'default'}"
        known[op] = {argument.name for argument in schema.arguments}
    for op, names in OTHERS.items():
        assert names <= known[op]
    for op in WRITING_STATISTICS:
        assert find_written_statistics(op, ()) <= known[op]


class Writes(TorchDispatchMode):
    """Finds the arguments that an operator writes and does not say so."""

    def __init__(self):
        super().__init__()
        self.found = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        arguments = func._schema.arguments
        given = dict(zip([a.name for a in arguments], args, strict=False))
        given |= kwargs or {}
        said = {a.name for a in arguments if a.alias_info and a.alias_info.is_write}
        written = {
            address_of_storage(tensor.untyped_storage())
            for name in said
            for tensor in filter(is_comparable, tree_leaves(given.get(name)))
        }
        kept = [
            (name, tensor, tensor.clone())
            for name in given.keys() - said
            for tensor in filter(is_comparable, tree_leaves(given[name]))
            if address_of_storage(tensor.untyped_storage()) not in written
        ]
        returned = func(*args, **(kwargs or {}))
        self.found |= {
            (str(func), name)
            for name, tensor, before in kept
            if tensor.shape != before.shape or not is_same(tensor, before)
        }
        return returned


def is_comparable(value):
    is_tensor = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return is_tensor and not (
        value.is_quantized or value.is_nested or is_zero_tensor(value)
    )


def is_same(tensor, before):
    return torch.equal(*(torch.view_as_real(t) if t.is_complex() else t.nan_to_num()
                         for t in (tensor, before)))  # fmt: skip


def run(op, mode):
    """Run the first samples of an operator of torch's database, and their backward."""
    dtype = torch.float32 if torch.float32 in op.dtypes else next(iter(op.dtypes))
    is_trained = op.supports_autograd and dtype.is_floating_point
    samples = op.sample_inputs("cpu", dtype, requires_grad=is_trained)
    for _, sample in zip(range(1), samples, strict=False):
        with contextlib.suppress(Exception), mode:  # what is refused writes nothing
            made = tree_leaves(op(sample.input, *sample.args, **sample.kwargs))
            losses = [
                t.sum() for t in made if isinstance(t, torch.Tensor) and t.requires_grad
            ]
            if losses:
                torch.autograd.backward(losses)


def test_operators_of_the_database_write_no_more_than_is_known():
    mode = Writes()
    for op in OPERATORS:
        if op.dtypes:
            run(op, mode)
    known = {
        (op, name)
        for op in WRITING_STATISTICS
        for name in ("running_mean", "running_var")
    }
    assert mode.found <= known
    assert ("aten.native_batch_norm.default", "running_mean") in mode.found
