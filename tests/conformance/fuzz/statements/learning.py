"""Statements with modules, gradients, optimizers and flags, and real code between."""

import torch
from torch import nn

MODULES = """
nn.Linear(4, 4)
nn.Linear(4, 3, bias=False)
nn.Linear(4, 4, dtype=torch.float64)
nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
nn.Sequential(nn.Linear(4, 4), nn.Dropout(.2), nn.LayerNorm(4))
nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4))
nn.Sequential(nn.Conv2d(4, 3, 3, padding=1), nn.BatchNorm2d(3), nn.GELU())
nn.Conv2d(4, 4, 3, padding=1, groups=2)
nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last)
nn.ConvTranspose2d(4, 2, 2)
nn.Conv1d(4, 4, 3)
nn.BatchNorm2d(4)
nn.GroupNorm(2, 4)
nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
nn.LayerNorm((5, 5))
nn.RMSNorm(4)
nn.PReLU(4)
nn.Bilinear(4, 4, 2)
nn.LSTM(4, 3)
nn.LSTM(4, 3, num_layers=2, bidirectional=True, dropout=.2)
nn.GRU(4, 3, batch_first=True)
nn.RNN(4, 3)
nn.LSTMCell(4, 4)
nn.MultiheadAttention(4, 2, batch_first=True)
nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
nn.TransformerEncoderLayer(4, 2, 8, dropout=0.)
nn.Embedding(10, 4)
nn.Embedding(10, 4, padding_idx=0, max_norm=1.)
nn.EmbeddingBag(10, 4)
nn.Dropout(.3)
nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
nn.utils.parametrizations.orthogonal(nn.Linear(4, 4))
nn.utils.weight_norm(nn.Linear(4, 4))
Tied()
Stateful()
Checkpointed()
""".strip().splitlines()

SHAPE_BY_CLASS = {
    "Linear": (2, 4),
    "LazyLinear": (2, 4),
    "ParametrizedLinear": (2, 4),
    "RMSNorm": (2, 4),
    "PReLU": (2, 4),
    "LSTMCell": (2, 4),
    "Dropout": (3, 4),
    "Stateful": (2, 4),
    "BatchNorm1d": (3, 4),
    "Conv1d": (2, 4, 6),
    "Conv2d": (2, 4, 5, 5),
    "ConvTranspose2d": (2, 4, 5, 5),
    "BatchNorm2d": (2, 4, 5, 5),
    "GroupNorm": (2, 4, 5, 5),
    "InstanceNorm2d": (2, 4, 5, 5),
    "LayerNorm": (2, 4, 5, 5),
    "LSTM": (3, 2, 4),
    "GRU": (2, 3, 4),
    "RNN": (3, 2, 4),
    "MultiheadAttention": (2, 3, 4),
    "TransformerEncoderLayer": (2, 3, 4),
}
"""What the first layer of a module takes."""


def find_input(module: nn.Module) -> str | None:
    """Return the text of an input that a module takes, None if none is known."""
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    for layer in module.modules():
        name = type(layer).__name__
        if name.startswith("Embedding"):
            return "torch.randint(0, 10, (2, 3))"
        if name in SHAPE_BY_CLASS:
            suffix = "" if dtype is torch.float32 else f", dtype={dtype}"
            text = f"torch.randn({SHAPE_BY_CLASS[name]}{suffix})"
            return f"*[{text}] * 3" if name == "MultiheadAttention" else text
    return None


CONSTRUCTION = """
{m} = {constructor}
{m} = nn.Sequential({constructor}, nn.Tanh())
{m} = {constructor}
{m} = nn.Sequential({constructor}, nn.Tanh())
{m} = nn.LazyLinear(4); {m}(torch.ones(2, 4))
"""

LEARNING = """
{new} = {input}
{new} = {input}
{new}, *_ = {input}
{module}.eval()
{module}.train()
{module}.double()
{module}.requires_grad_({flag})
{module}.to(torch.bfloat16)
{module}.zero_grad()
{m} = copy.deepcopy({module})
{module}.apply(reset)
{module}.register_buffer("extra", torch.rand(3))
{module}.load_state_dict({module}.state_dict())
{new} = next({module}.parameters())
{new} = next({module}.parameters()).data
{new} = next({module}.parameters()).detach()
{new} = {module}.state_dict()[next(iter({module}.state_dict()))]
{module}.weight = nn.Parameter(torch.zeros_like({module}.weight))
{new} = torch.func.functional_call({module}, dict({module}.named_parameters()), (torch.randn(2, 4),))
{module}.half().float()
with torch.no_grad(): {new} = {input}
with torch.inference_mode(): {new} = {input}
with torch.autocast("cpu", dtype=torch.bfloat16): {new} = {input}
nn.utils.clip_grad_norm_({module}.parameters(), 1.)
{v} = sum(p.numel() for p in {module}.parameters())
"""  # noqa: E501

AUTOGRAD = """
{new} = torch.randn({shape}, requires_grad=True)
{new} = {floatconstant}.clone().requires_grad_()
{floatconstant}.requires_grad_()
{wanted}.sum().backward()
{wanted}.pow(2).mean().backward()
{wanted}.prod().backward()
{wanted}.backward(torch.ones_like({wanted}))
({wanted} * torch.randn({size})).sum().backward()
({wanted} * torch.randn({size}).mT.contiguous().mT).sum().backward()
{new} = {input}; {new}.sum().backward()
{new} = {input}; F.mse_loss({new}, torch.zeros_like({new})).backward()
{new} = {wanted}; {new} = {new} * 2; {new}.retain_grad(); {new}.sum().backward()
{new}, *_ = torch.autograd.grad({wanted}.exp().sum(), {leaf}, allow_unused=True, materialize_grads=True)
{new}, *_ = torch.autograd.grad({leaf}.pow(3).sum(), {leaf}, create_graph=True)
{leaf}.grad = None
{leaf}.grad.zero_()
{leaf}.register_hook(lambda g: g * 2)
{new} = Double.apply({float})
{new} = checkpoint(lambda x: F.dropout(x.sin(), .3), {wanted}, use_reentrant={flag})
{new} = F.cross_entropy(torch.randn(3, 5, requires_grad=True), torch.tensor([1, 0, 4]), reduction={reduction})
{new} = F.mse_loss({wanted}, torch.randn({size}), reduction={reduction})
{new} = F.layer_norm({wanted}, {wanted}.shape[-1:])
{new} = F.group_norm({image}, 2)
{new} = F.batch_norm({image}, None, None, training=True)
{new} = torch.func.grad(lambda x: x.sin().sum())({floatconstant})
{new} = torch.vmap(torch.sin)({floatconstant})
{new} = torch.autograd.functional.jacobian(torch.exp, torch.rand(2))
{new} = F.{loss}({wanted}, torch.rand({size}))
with torch.no_grad(): {statement}
with torch.enable_grad(): {statement}
with torch.inference_mode(): {statement}
{new} = {wanted}.detach()
{new} = {wanted}.grad
"""  # noqa: E501

OPTIMIZERS = """
{o} = torch.optim.{optimizer_class}({module}.parameters(), lr=.1)
{o} = torch.optim.{optimizer_class}([{leaf}], lr=.1)
{o} = torch.optim.SGD({module}.parameters(), lr=.1, momentum=.9, nesterov=True, weight_decay=.01)
{o} = torch.optim.Adam({module}.parameters(), lr=.1, {implementation}=True)
{o} = torch.optim.AdamW({module}.parameters(), lr=torch.tensor(.1))
{optimizer}.step()
{optimizer}.step()
{optimizer}.zero_grad()
{optimizer}.zero_grad(set_to_none=False)
train({module}, {optimizer}, lambda: {input})
train({module}, torch.optim.{optimizer_class}({module}.parameters(), lr=.1), lambda: {input})
{v} = torch.optim.lr_scheduler.StepLR({optimizer}, 1, .5); {v}.step(); del {v}
"""  # noqa: E501

FLAGS = """
torch.set_default_dtype(torch.float64)
torch.set_default_dtype(torch.float32)
torch.set_grad_enabled({flag})
torch.use_deterministic_algorithms({flag}, warn_only=True)
torch.set_flush_denormal({flag})
with torch.backends.mkldnn.flags(enabled=False): {statement}
with torch.autocast("cpu", dtype=torch.bfloat16): {statement}
with torch.autocast("cpu", dtype=torch.float16): {statement}
with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH): {statement}
for _ in range(2): {statement}
with torch.set_grad_enabled({flag}): {statement}
{new} = torch.full((3,), 1e-39) * 1.5
del {any}
"""

OUTSIDE = """
{constant}.add_(5)
{constant}[0] = 2
torch._foreach_add_([{constant}], 1)
{optimizer}.step()
with torch.no_grad(): {float}.mul_(2)
"""
"""Writes that no cell records: what they leave cannot be known, and is refused.

Not by ``{constant}.data``, which is gone after the write and counts for itself alone:
on meta nothing is left of that to be seen."""

BETWEEN = """
torch.manual_seed({n})
torch.manual_seed({n})
{own}.manual_seed({n})
{v} = tuple({any}.shape)
del {any}
{new} = {any}.detach()
{new} = {dims}[:1]
{g} = torch.Generator().manual_seed({n})
{module}.eval()
{module}.zero_grad()
{module}.train()
torch.manual_seed({n}); {v} = torch.rand(2).tolist()
"""
"""Real code between two cells."""


WORDS = {
    "constructor": MODULES,
    "loss": ["l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"],
    "reduction": ['"mean"', '"sum"', '"none"'],
    "optimizer_class": (
        [
            "SGD",
            "Adam",
            "AdamW",
            "RMSprop",
            "Adagrad",
            "Adadelta",
            "NAdam",
            "RAdam",
            "Adamax",
            "ASGD",
            "Rprop",
        ]
    ),
    "implementation": ["foreach", "fused", "amsgrad", "capturable", "maximize"],
}
