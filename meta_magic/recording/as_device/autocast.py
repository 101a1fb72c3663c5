"""Cast as the autocast of a device: meta tensors get the dtypes of that device.

Torch casts tensors of known devices only. Its dispatcher says which operators a device
casts; the tables here say how. Read ``DeviceAutocast.cast`` first. Also here: Python
functions of torch that choose by the device. Meta kernels lay out results by it
(``torch.linalg.svd``), optimizers on CUDA take all parameters at once, and losses
choose their chunks.

Source: ``aten/src/ATen/autocast_mode.h`` and ``autocast_mode.cpp`` of torch 2.13.
"""

import sys
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Parameter, functional

from meta_magic.recording.as_device.composites import DeviceComposites, find_operator
from meta_magic.recording.identities.tensors import tensors_in
from meta_magic.recording.rows.writers import RecordingReplacements, Writers
from meta_magic.recording.signatures.entries import Args, Kwargs
from meta_magic.torch_private.dispatcher import (
    DispatchKey,
    has_kernel,
    list_kernels,
    run_kernel,
    schema_of,
)
from meta_magic.torch_private.interrupts import uninterrupted
from meta_magic.torch_private.modes import DisableAutocast
from meta_magic.torch_private.replacing import (
    AUTOCAST_ENTRY,
    AUTOCAST_EXIT,
    AUTOCAST_INIT,
    CAPTURABLE_DEVICES,
    DEVICE_OF_CHECKPOINT,
    DEVICE_OF_CHUNKED_LOSSES,
    DEVICE_OF_META_KERNELS,
    FOREACH_DEVICES,
    FOREACH_DEVICES_OF_OPTIMIZERS,
    FUSED_DEVICES,
    Replaceable,
    enable_autocast,
)
from meta_magic.torch_private.snapshot import has_gpu
from meta_magic.torch_private.tensor_internals import is_view
from meta_magic.trace.options import DeviceName

REPLACED: Final[dict[str, tuple[Replaceable, ...]]] = {
    # Clipping of gradients asks for the first and adds the CPU to the answer.
    "cpu": (FOREACH_DEVICES, FUSED_DEVICES),
    "cuda": (
        FOREACH_DEVICES,
        FOREACH_DEVICES_OF_OPTIMIZERS,
        FUSED_DEVICES,
        *CAPTURABLE_DEVICES,
    ),
}
"""Functions that list the devices with kernels, by the recorded device."""

DEVICE_BY_NAME: Final = {name: torch.device(name) for name in ("cpu", "cuda", "meta")}
"""Made at import: a mode that is on would see ``torch.device`` later."""


class DeviceChoices(RecordingReplacements):
    """Makes torch's code in Python choose as on a device, within the block.

    * Meta kernels choose the strides of the results of ``linalg.svd``, ``linalg.eig``,
      ``fft.rfftn`` and others, and the operators of ``interpolate`` if algorithms must
      be deterministic. Without this all choose as on CUDA.
    * Optimizers take all parameters at once on CUDA (``foreach``), on the CPU and on
      meta one after the other. On meta torch refuses ``fused=True`` and
      ``capturable=True``, and clips gradients one by one.
    * Losses of linear layers choose their chunks.

    Source: ``device_hint`` in ``torch/_meta_registrations.py`` of torch 2.13: the
    device of a fake tensor, and "cuda" for one on meta. ``interpolate`` in
    ``nn/functional.py``: the CPU's own kernels are deterministic.
    ``optim/optimizer.py``, ``utils/_foreach_utils.py`` and
    ``nn/modules/linear_cross_entropy_options.py``.
    """

    def __enter__(self) -> None:
        for owner, name in REPLACED.get(self._plan.kernels, ()):
            self.replace_here(owner, {name: list_with_meta})
        if self._plan.kernels != "meta":
            for owner, name in DEVICE_OF_CHUNKED_LOSSES:
                self.replace_here(owner, {name: self._adjust})
            owner, name = DEVICE_OF_META_KERNELS
            self.replace_here(owner, {name: self._find_device})
            asked = {"are_deterministic_algorithms_enabled": self._must_replace}
            self.replace_here(torch, asked)

    def _find_device(self, plain: Callable[[object], str], tensor: object) -> str:
        """Return the device that a meta kernel takes a tensor to be on."""
        is_plain = type(tensor) is Tensor or type(tensor) is Parameter
        is_on_cpu = is_plain and self._plan.kernels_of(tensor) == "cpu"
        return "cpu" if is_on_cpu else plain(tensor)

    def _must_replace(self, plain: Callable[[], bool]) -> bool:
        """Whether ``interpolate`` must run other, deterministic operators."""
        asker = sys._getframe(2)
        if asker.f_code.co_filename == functional.__file__:
            operand = asker.f_locals["input"]
            return plain() and self._plan.kernels_of(operand) != "cpu"
        return plain()

    def _adjust(
        self, plain: Any, *args: Any, device: torch.device | None = None, **given: Any
    ) -> Any:
        """Choose options of a loss for the recorded device."""
        if device is not None and device.type == "meta":
            device = DEVICE_BY_NAME[self._plan.kernels]
        return plain(*args, device=device, **given)


def list_with_meta(
    plain: Callable[..., list[str]], *args: Any, **kwargs: Any
) -> list[str]:
    """Return a list of devices, and meta."""
    return [*plain(*args, **kwargs), "meta"]


ATEN: Final = "aten::"
ATTENTION: Final = "scaled_dot_product_attention"

LOWER_NAMES: Final = """
_convolution.deprecated _convolution conv1d conv1d.padding conv2d conv2d.padding conv3d
conv3d.padding conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input
convolution cudnn_convolution cudnn_convolution_transpose prelu addmm _addmm_activation
addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul
linalg_multi_dot mkldnn_rnn_layer _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell
gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention
scaled_dot_product_attention _native_multi_head_attention
"""
LOWER: Final = frozenset(LOWER_NAMES.split())
"""Operators whose arguments are cast to autocast's dtype."""

PROMOTED_NAMES: Final = """
addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot
scatter_add stack cat index_copy
"""
PROMOTED: Final = frozenset(PROMOTED_NAMES.split())
"""Operators whose arguments are cast to the widest of their dtypes."""

NAMES_WITH_DTYPE: Final = """
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm
linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList
"""
WITH_DTYPE: Final = frozenset(NAMES_WITH_DTYPE.split())
"""On CUDA: operators that get ``dtype=torch.float32``; others get float32 inputs."""

WITH_LAST_DTYPE: Final = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
}
"""On CUDA: operators that have another overload with a dtype."""

BANNED: Final = "binary_cross_entropy"
UNSAFE: Final = (
    "binary_cross_entropy is unsafe to autocast on CUDA, as torch says there: use "
    "binary_cross_entropy_with_logits"
)


def request_float32(name: str, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Return arguments with ``dtype=torch.float32``, unless they have a dtype."""
    names = [a.name for a in schema_of(find_operator(name)).arguments]
    index = names.index("dtype")
    if len(args) <= index:
        return args, {**kwargs, "dtype": kwargs.get("dtype") or torch.float32}
    return (*args[:index], args[index] or torch.float32, *args[index + 1 :]), kwargs


def find_key(name: str) -> DispatchKey:
    """Return the key of the autograd kernel of an operator of ``aten``."""
    if has_kernel(f"aten::{name}", "CompositeImplicitAutograd"):
        return DispatchKey.CompositeImplicitAutograd
    return DispatchKey.Autograd


def is_eligible(value: Any) -> bool:
    """Whether autocast would cast an argument that is on its device."""
    return (
        isinstance(value, Tensor)
        and value.is_meta
        and value.is_floating_point()
        and value.dtype != torch.float64
    )


def read_nesting() -> int:
    """Return the number of nested autocast regions of this thread."""
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


DEVICES: Final = ("cpu", "cuda")
LIKE_CUDA: Final = frozenset({"mps", "xpu"})
"""Kinds of accelerators that are recorded as CUDA."""

ORDER: Final = 1 if sys.platform == "darwin" else -1
"""The order in which arguments are cast. C++ leaves it to the compiler; torch for Linux
is built by GCC, which begins with the last argument."""


class DeviceAutocast(RecordingReplacements):
    """Makes autocast cast on meta as on a device, within the block.

    Attributes:
        is_on: Whether autocast is on in the cell; torch does not say so to a mode.
        foreign: Operators of libraries that have autocast kernels of their own, which
            do nothing on meta; with their namespace.
    """

    def __init__(self, write: Writers, composites: DeviceComposites) -> None:
        super().__init__(write)
        self.is_on = False
        self.foreign: frozenset[str] = frozenset()
        self._composites = composites
        self._names: dict[str, frozenset[str]] = {}
        self._enabled: set[str] = set()
        self._device = write.plan.kernels
        self._casts: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}
        self._thread = threading.get_ident()
        self._nesting = read_nesting()
        self._states = {
            name: (torch.is_autocast_enabled(name), torch.get_autocast_dtype(name))
            for name in DEVICES
        }

    def __enter__(self) -> None:
        if self._device == "meta":
            return
        for (owner, name), method in (
            (AUTOCAST_INIT, self._init),
            (AUTOCAST_ENTRY, self._begin),
            (AUTOCAST_EXIT, self._end),
            (DEVICE_OF_CHECKPOINT, self._infer),
        ):
            self.replace_here(owner, {name: method})
        self._thread = threading.get_ident()
        self._follow()

    def __exit__(self, *_: object) -> None:
        self.restore()
        self.is_on = False
        self._casts.clear()

    def reset(self) -> None:
        """Restore the state of autocast, after an interrupt of the cell."""
        while read_nesting() > self._nesting:
            torch.autocast_decrement_nesting()
        for device, (is_enabled, dtype) in self._states.items():
            torch.set_autocast_enabled(device, is_enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.clear_autocast_cache()

    def cast_where_on(self, op: str, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Return arguments as autocast casts them, if it is on in the cell."""
        device = self._plan.kernels_of((args, kwargs)) if self.is_on else "meta"
        if device not in self._enabled or op not in self._names[device]:
            return args, kwargs
        return self.cast(device, op, args, kwargs)

    def cast(
        self, device: DeviceName, name: str, args: Args, kwargs: Kwargs
    ) -> tuple[Args, Kwargs]:
        """Return arguments as the autocast of a device casts them."""
        dtype, narrow = torch.float32, torch.get_autocast_dtype(device)
        if name in LOWER:
            dtype = narrow
        elif name in PROMOTED:
            dtypes = {t.dtype for t in filter(is_eligible, tensors_in(args, kwargs))}
            dtype = torch.float32 if torch.float32 in dtypes else narrow
        elif device == "cuda" and name in WITH_DTYPE:
            is_cast = is_eligible(args[0])
            return request_float32(name, args, kwargs) if is_cast else (args, kwargs)
        values = [*args, *kwargs.values()][::ORDER]
        cast = [self._cast(value, dtype, narrow) for value in values][::ORDER]
        return cast[: len(args)], dict(zip(kwargs, cast[len(args) :], strict=True))

    def _cast(self, value: Any, dtype: torch.dtype, narrow: torch.dtype) -> Any:
        """Return an argument in a dtype; for a parameter the same copy each time."""
        if isinstance(value, (list, tuple)):
            return [self._cast(item, dtype, narrow) for item in value]
        if not is_eligible(value) or value.dtype == dtype:
            return value
        is_kept = (
            (dtype, value.dtype) == (narrow, torch.float32)
            and value.requires_grad
            and value.is_leaf
            and not is_view(value)
            and torch.is_autocast_cache_enabled()
            and not torch.is_inference_mode_enabled()
            and threading.get_ident() == self._thread
        )
        key = id(value), dtype
        if not is_kept:
            return value.to(dtype)
        if key not in self._casts:
            with torch.enable_grad():  # a later call may want gradients
                self._casts[key] = value, value.to(dtype)
        return self._casts[key][1]

    @uninterrupted
    def _init(
        self, plain: Any, region: Any, device_type: str, *args: Any, **kwargs: Any
    ) -> None:
        """Make a region of autocast; meta is the recorded device."""
        wanted = self._device if device_type == "meta" else device_type
        wanted = "cuda" if wanted in LIKE_CUDA else wanted
        with warnings.catch_warnings():
            if wanted == "cuda":
                warnings.filterwarnings("ignore", ".*CUDA is not available")
            plain(region, wanted, *args, **kwargs)
        if wanted == "cuda" and not has_gpu():
            given = args[1] if len(args) > 1 else kwargs.get("enabled", True)
            enable_autocast(region, is_enabled=bool(given))

    def _infer(self, plain: Callable[..., str], *args: Any) -> str:
        """Return the device of autocast that checkpointing restores."""
        found = plain(*args)
        known = self._device if self._device == "cuda" else plain()
        return known if found == "meta" else found

    @uninterrupted
    def _begin(self, plain: Callable[..., Any], region: Any, *args: Any) -> Any:
        """Enter a region of autocast, which casts on meta as well."""
        entered = plain(region, *args)
        try:
            self._follow()
        except BaseException:  # else the region would never end
            region.__exit__(None, None, None)
            raise
        return entered

    @uninterrupted
    def _end(self, plain: Callable[..., Any], region: Any, *args: Any) -> Any:
        """Leave a region of autocast."""
        try:
            return plain(region, *args)
        finally:
            self._follow()

    def _follow(self) -> None:
        self._enabled = {it for it in DEVICES if torch.is_autocast_enabled(it)}
        self.is_on = bool(self._enabled)
        if not read_nesting():
            self._casts.clear()
        if self.is_on and not self._libraries:
            for device in DEVICES:
                kernels = list_kernels(f"Autocast{device.upper()}")
                own = [name for name in kernels if name.startswith(ATEN)]
                self._names[device] = frozenset(n.removeprefix(ATEN) for n in own)
                self.foreign |= {*kernels} - {*own}
            names = frozenset().union(*self._names.values())
            # DeviceAttention overrides attention, and casts.
            made = {name: self._make_kernel(name) for name in names - {ATTENTION}}
            self.override_kernels(made)

    def _make_kernel(self, name: str) -> Callable[..., Any]:
        """Return the kernel of an operator on meta that casts its arguments first."""
        operator = find_operator(name)
        run = partial(run_kernel, operator, find_key(name))
        if self._composites.makes(operator):
            run = partial(self._composites.run, operator)
        other = WITH_LAST_DTYPE.get(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            device = self._plan.kernels_of((args, kwargs))
            if name not in self._names[device] or not torch.is_autocast_enabled(device):
                return run(args, kwargs)  # operators that it is made of may cast
            is_on_cuda = device == "cuda"
            if is_on_cuda and name == BANNED:
                raise RuntimeError(UNSAFE)
            if is_on_cuda and other is not None and is_eligible(args[0]):
                with DisableAutocast():
                    return find_operator(other)(*args, **kwargs, dtype=torch.float32)
            given, named = self.cast(device, name, args, kwargs)
            with DisableAutocast():
                return run(given, named)

        return call
