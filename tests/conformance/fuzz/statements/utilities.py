"""Statements of ``torch.utils``, ``nn.utils`` and tensor subclasses, and ``out=``."""

MODULE_UTILITIES = """
{new} = nn.utils.parameters_to_vector({module}.parameters())
nn.utils.vector_to_parameters(nn.utils.parameters_to_vector({module}.parameters()) * .5, {module}.parameters())
nn.utils.clip_grad_value_({module}.parameters(), .01)
nn.utils.clip_grad_norm_({module}.parameters(), .1, norm_type={norm_type}, foreach={flag})
{new} = nn.utils.get_total_norm([p.grad for p in {module}.parameters() if p.grad is not None])
nn.utils.clip_grads_with_norm_({module}.parameters(), .1, torch.tensor(2.))
nn.utils.parametrize.register_parametrization({module}, "weight", Doubled())
nn.utils.parametrize.remove_parametrizations({module}, "weight", leave_parametrized={flag})
with nn.utils.parametrize.cached(): {new} = {input}
nn.utils.spectral_norm({module})
nn.utils.remove_spectral_norm({module})
nn.utils.weight_norm({module})
nn.utils.remove_weight_norm({module})
nn.utils.parametrizations.{parametrization}({module})
prune.{unstructured}({module}, "weight", .3)
prune.ln_structured({module}, "weight", .5, n=2, dim=0)
prune.random_structured({module}, "weight", 1, dim=0)
prune.global_unstructured([({module}, "weight")], prune.L1Unstructured, amount=.5)
prune.custom_from_mask({module}, "weight", torch.rand_like({module}.weight) > .5)
prune.identity({module}, "weight")
prune.remove({module}, "weight")
{v} = prune.is_pruned({module})
{m} = nn.utils.fuse_conv_bn_eval(nn.Conv2d(4, 4, 3).eval(), nn.BatchNorm2d(4).eval())
{m} = nn.utils.fuse_linear_bn_eval(nn.Linear(4, 4).eval(), nn.BatchNorm1d(4).eval())
{m} = nn.utils.skip_init(nn.Linear, 4, 4); nn.init.ones_({m}.weight); nn.init.zeros_({m}.bias)
{m} = nn.utils.convert_conv2d_weight_memory_format({module}, torch.channels_last)
with torch.inference_mode(): {m} = {constructor}.requires_grad_(False)
{module}.share_memory()
{v} = [p.is_shared() for p in {module}.parameters()]
{module}.weight.data = torch.randn({module}.weight.shape)
{module}.weight.data = {module}.weight.data.t().contiguous()
{m} = copy.copy({module})
{m} = pickle.loads(pickle.dumps({module}))
nn.init.dirac_({module}.weight)
{v} = {module}.weight.register_hook(lambda g: g if g.sum() > 0 else -g); del {v}
{v} = {module}.register_forward_hook(lambda m, a, r: r * 2 if torch.is_tensor(r) and r.sum() > 0 else None); del {v}
{m} = nn.ParameterList([torch.randn({shape}), torch.ones(2)])
{module}.extra_buffer = nn.Buffer(torch.rand(2))
"""  # noqa: E501

TENSOR_UTILITIES = """
torch.utils.swap_tensors({floatconstant}, {floatconstant2})
{new} = torch.{window}({n}, periodic={flag})
{new} = torch.kaiser_window({n}, {flag}, 8.)
{new} = torch.signal.windows.{signal_window}({n}, sym={flag})
{new} = torch.signal.windows.kaiser({n}, beta=3., dtype=torch.float64)
{new} = torch.take_along_dim({any}, torch.tensor([0]))
{new} = torch.take_along_dim({dims}, {dims}.argmin({dim}, keepdim=True), {dim})
{new} = {any}.as_strided((2,), (1,))
{new} = {any}.as_strided((2, 2), (0, 1), 0)
{new} = torch.as_strided({any}, (2,), (0,), {any}.storage_offset())
{any}.as_strided_((1, 1), (1, 1)) if {any}.numel() == 1 else None
{new} = torch.as_strided_scatter({floatconstant}, torch.ones(2), (2,), (1,))
{new} = {any}.sum().as_strided((1,), (1,))
{new} = {vector}.mean().as_strided((1,), (1,)); {new}.add_(1)
{v} = {any}.untyped_storage().nbytes()
with torch.inference_mode(): {new} = {any} * 2
with torch.inference_mode(): {new} = torch.randn({shape}); {new2} = {new}.view(-1)
{new} = {inference}.clone()
{new} = {inference} + 1
{new} = {inference}[{index}]
with torch.inference_mode(): {inference}.add_(1)
with torch.inference_mode(): {new} = {wanted}.sum()
with torch.inference_mode(): {new} = torch.cdist({matrix}, {matrix})
{new} = {inference}.detach().numpy().copy(); {new} = torch.from_numpy({new})
{new} = Labeled({any})
{new} = Labeled([1., {number}])
{new} = {any}.as_subclass(Labeled)
{new} = {any}.as_subclass(Counted)
{new} = torch.Tensor._make_subclass(Labeled, {constant})
{new} = torch.Tensor._make_subclass(Labeled, {floatconstant}, True)
{new} = {labeled}.as_subclass(torch.Tensor)
{new} = {labeled} * 2
{new} = {labeled}.sum()
{new} = nn.Parameter({labeled})
{new} = {labeled}.clone().requires_grad_(); ({new} ** 2).sum().backward()
{v} = type({labeled} + 1).__name__, {labeled}.sum().item()
{new} = copy.deepcopy({labeled}.detach())
{new} = torch.rand(2, 3); {new2} = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack({new}.detach()))
{new} = torch.rand(2, 3); {new2} = torch.from_dlpack({new}.detach()); {new2}.add_(1)
{new} = torch.from_dlpack(np.arange(3.))
{v} = np.from_dlpack({constant}).sum().item()
if not {leaf}.is_inference(): {leaf}.data = torch.zeros({shape})
if not {floatconstant}.is_inference(): {floatconstant}.data = {floatconstant2}.clone()
{constant}.share_memory_()
{v} = {any}.is_shared()
{new} = torch.asarray({constant}, copy=True)
{new} = torch.asarray(np.ones(3)) + {number}
{new} = torch.frombuffer(bytearray(8), dtype=torch.float32) + 1
{new} = pickle.loads(pickle.dumps({any}.detach()))
{new} = torch.nn.utils.rnn.pad_sequence([torch.ones(2), torch.randn(3)], batch_first={flag})
{new}, {new2} = nn.utils.rnn.pad_packed_sequence(nn.utils.rnn.pack_sequence([torch.randn(3, 2), torch.ones(1, 2)]))
{new} = nn.utils.rnn.pack_sequence([torch.randn(3), torch.ones(1)]).data
{new} = torch.vmap(lambda x: x * 2 + x.sum())({dims})
{new} = torch.func.vjp(torch.sin, {floatconstant})[0]
{new}, {new2} = torch.func.jvp(torch.sin, ({floatconstant},), (torch.ones_like({floatconstant}),))
{new} = torch.func.jacrev(torch.exp)({vector})
{new} = torch.vmap(torch.randn_like, randomness={randomness})({dims}.float())
{v} = {wanted}.register_hook(lambda g: g * 2 if g.sum() > 0 else g); del {v}
{new} = torch.functional.atleast_1d({any}); {new2} = torch.unravel_index(torch.tensor(3), (2, 3))[0]
"""  # noqa: E501

ALL_OUT = """
{new} = torch.empty({shape}); torch.{sized}({shape2}, out={new})
{new} = torch.empty({shape}, dtype={dtype}); torch.{sized}({shape2}, dtype={dtype}, out={new})
torch.{sized}({shape}, out={floattarget})
torch.{sized}({size}, out={floattarget})
{new} = torch.{sized}(2, 3, out=torch.empty(3, 2).t())
{new} = {floatconstant}.view(-1); torch.{sized}({shape}, out={floattarget})
torch.full({shape}, {number}, out={floattarget})
torch.randint(0, 9, {shape}, out={target})
torch.randperm({n}, out={inttarget})
torch.normal(0., 1., {shape}, out={floattarget})
torch.normal(torch.zeros({shape}), 1., out={floattarget})
torch.arange({n}, out={target})
torch.linspace(0, 1, {n}, out={floattarget})
torch.logspace(0, 1, {n}, out={floattarget})
torch.eye({n}, out={floattarget})
torch.bernoulli(torch.rand({shape}), out={floattarget})
torch.multinomial(torch.ones(4), 2, out={inttarget})
torch.{unary}({any}, out={target})
torch.{binary}({any}, {same}, out={target})
torch.{reduction_out}({floatconstant}, 0, out={floattarget})
{new} = torch.{whole_out}({constant}, out=torch.empty(0, dtype={constant}.dtype))
{new} = torch.nonzero({any}, out=torch.empty(0, dtype=torch.long))
torch.nonzero({any}, out={inttarget})
torch.masked_select({constant}, {constant} > 0, out={target})
torch.matmul({matrix}, {matrix}.t(), out={floattarget})
torch.where({any} > 0, {floatconstant}, {same}, out={floattarget})
torch.cat([{constant}, {constant}], out={target})
torch.gather({constant}, 0, torch.zeros(1, dtype=torch.long), out={target})
torch.take({constant}, torch.tensor([0]), out={target})
torch.tril({matrix}, out={floattarget})
torch.diag({vector}, out={floattarget})
torch.clamp({floatconstant}, 0, 1, out={floattarget})
torch.lerp({floatconstant}, {same}, .3, out={floattarget})
torch.linalg.inv({square}, out={floattarget})
torch.linalg.norm({floatconstant}, out={floattarget})
torch.fft.fft({floatconstant}, out={complextarget})
torch.complex({floatconstant}, {floatconstant}, out={complextarget})
torch.topk({vector}, 1, out=({floattarget}, {inttarget}))
torch.take_along_dim({floatconstant}, {floatconstant}.argsort(0), 0, out={floattarget})
torch.bucketize({floatconstant}, torch.tensor([0., 1.]), out={inttarget})
torch.histc({floatconstant}, 4, out={floattarget})
"""  # noqa: E501

WORDS = {
    "norm_type": ["1.", "2.", "float('inf')"],
    "parametrization": ["weight_norm", "spectral_norm", "orthogonal"],
    "unstructured": ["l1_unstructured", "random_unstructured"],
    "window": ["bartlett_window", "blackman_window", "hamming_window", "hann_window"],
    "signal_window": [
        *("bartlett", "blackman", "cosine", "exponential", "gaussian", "hamming"),
        *("hann", "nuttall"),
    ],
    "randomness": ['"same"', '"different"'],
    "sized": ["rand", "randn", "zeros", "ones", "rand", "randn"],
    "reduction_out": ["sum", "mean", "prod", "amax", "cumsum", "logsumexp", "softmax"],
    "whole_out": ["sum", "max", "min", "abs", "neg", "square"],
}
