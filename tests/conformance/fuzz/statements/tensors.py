"""Statements that make tensors: factories, random draws, generators, views."""

SHAPES = (
    *("(4,)", "(2, 4)", "(4, 4)", "(3, 4)", "(2, 3, 4)", "(2, 4, 5, 5)") * 3,
    *("()", "(1,)", "(3,)", "(2, 1)", "(1, 4)", "(0,)", "(2, 0)", "(17,)", "(33, 4)"),
    *("(1, 1)", "(2, 2)", "(2, 4, 6)", "(2, 8, 4, 4)", "(4, 3, 3, 4)", "(1, 3, 1, 2)"),
)

FACTORIES = """
{new} = torch.{fill}({shape})
{new} = torch.{fill}({shape}, dtype={dtype})
{new} = torch.full({shape}, {number})
{new} = torch.full({shape}, {number}, dtype={dtype})
{new} = torch.arange({n})
{new} = torch.arange(0, {n}, .5)
{new} = torch.arange({n}, 0, -1, dtype={dtype})
{new} = torch.arange(12.).reshape(3, 4)
{new} = torch.arange(24.).reshape(2, 3, 4).transpose(0, {d})
{new} = torch.linspace(-1, 1, {n})
{new} = torch.linspace(0, 2, 4, dtype={fdtype})
{new} = torch.logspace(0, 1, {n})
{new} = torch.eye({n})
{new} = torch.eye(4, {n}, dtype={dtype})
{new} = torch.tensor([1., 2., {number}, 4.])
{new} = torch.tensor([[1, 2], [3, {n}]])
{new} = torch.tensor({number})
{new} = torch.tensor([1, 0, 2, 1], dtype={dtype})
{new} = torch.as_tensor([[.5, 1.], [-1., 2.]])
{new} = torch.empty({shape}).fill_({number})
{new} = torch.empty_strided((2, 3), (1, 2)).fill_(2)
{new} = torch.empty_like({float}).zero_()
{new} = torch.{fill}_like({any})
{new} = torch.{fill}_like({any}, dtype={dtype})
{new} = torch.full_like({any}, {number})
{new} = {any}.new_{fill}({shape})
{new} = {any}.new_full((2, 4), {number})
{new} = {any}.new_tensor([1, 2, 3])
{new} = torch.tril_indices(3, {n})
{new} = torch.hann_window({n})
{new} = torch.complex({float}, {float})
{new} = torch.{fill}({shape}).to(memory_format=torch.channels_last)
{new} = torch.scalar_tensor({number})
{new} = torch.nn.Parameter(torch.ones({shape}))
{new} = torch.Tensor(2, 3).zero_()
{new} = torch.from_numpy(np.arange(4.))
{new} = torch.vander(torch.arange(3.))
"""

DRAWS = """
{new} = torch.rand({shape}{gen})
{new} = torch.randn({shape}{gen})
{new} = torch.randn({shape})
{new} = torch.randn({shape}, dtype={fdtype})
{new} = torch.randn({shape}, dtype=torch.complex64)
{new} = torch.randint(0, 4, {shape}{gen})
{new} = torch.randint(-3, 9, {shape}, dtype={dtype})
{new} = torch.randperm({n}{gen})
{new} = torch.randn(2, 4, 5, 5).to(memory_format=torch.channels_last)
{new} = torch.randn(3, 4).t()
{new} = torch.rand_like({float})
{new} = torch.randn_like({float})
{new} = torch.randint_like({any}, 5)
{new} = torch.normal(0., 1., {shape}{gen})
{new} = torch.normal({float}, 1.)
{new} = torch.normal(torch.zeros({shape}), torch.rand({shape}))
{new} = torch.bernoulli(torch.rand({shape}){gen})
{new} = torch.poisson(torch.rand({shape}) * 4)
{new} = torch.multinomial(torch.ones(5), 3{gen})
{floatconstant}.normal_()
{floatconstant}.uniform_(-1, 1)
{floatconstant}.exponential_()
{floatconstant}.cauchy_()
{floatconstant}.log_normal_()
{constant}.random_(0, 5)
{constant}.bernoulli_(.4)
{floatconstant}.geometric_(.3)
{new} = F.dropout({float}, {probability})
{new} = F.dropout({float}, {probability}, training={flag})
{new} = F.alpha_dropout({float}, {probability}, training=True)
{new} = F.dropout2d({image}, {probability})
{new} = F.rrelu({float}, training={flag})
{new} = F.gumbel_softmax({dims}.float(), hard={flag})
{new} = F.fractional_max_pool2d({image}, 2, output_size=2)
nn.init.xavier_uniform_({matrix})
nn.init.kaiming_normal_({matrix})
nn.init.trunc_normal_({floatconstant}, std=.02)
nn.init.orthogonal_({matrix})
nn.init.sparse_({matrix}, .3)
nn.init.normal_({float}, 0., .02)
{new} = torch.distributions.Normal(0., 1.).sample({shape})
{new} = torch.distributions.Gamma(2., 1.).sample((3,))
{new} = torch.distributions.Beta(2., 3.).sample((2,))
{new} = torch.distributions.Dirichlet(torch.ones(3)).sample()
{new} = torch.distributions.Categorical(torch.ones(4)).sample((5,))
{new} = torch.distributions.Bernoulli(.5).sample((4,))
{new} = torch.distributions.Exponential(torch.ones(3)).rsample()
{new} = torch.distributions.Binomial(5, torch.tensor(.3)).sample((3,))
{new} = torch.distributions.StudentT(3.).sample((3,))
{new} = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2)).sample()
{v} = random.random()
{v} = np.random.rand()
"""

GENERATORS = """
{g} = torch.Generator().manual_seed({n})
{g} = torch.Generator()
{own}.manual_seed({n})
torch.manual_seed({n})
torch.random.manual_seed({n})
{v} = torch.get_rng_state(); {new} = torch.rand(3); torch.set_rng_state({v}); del {v}
{v} = {own}.get_state(); {new} = torch.rand(2, generator={own}); {own}.set_state({v}); del {v}
with torch.random.fork_rng(): {statement}
with torch.random.fork_rng(): torch.manual_seed(3); {statement}
{v} = torch.rand(2, device="cpu").tolist()
{v} = torch.randperm(5, device="cpu").tolist()
{v} = torch.initial_seed()
{v} = torch.get_rng_state().sum().item()
{v} = [b[0].tolist() for b in DataLoader(TensorDataset(torch.arange(6.)), 2, shuffle=True)]
{v} = list(torch.utils.data.RandomSampler(range(5)))
{v} = [list(s) for s in torch.utils.data.random_split(range(6), [4, 2])]
"""  # noqa: E501

VIEWS = """
{new} = {dims}.transpose(0, {dim})
{new} = {any}.permute(*reversed(range({any}.ndim)))
{new} = {any}.reshape{view}
{new} = {any}.view{view}
{new} = {any}.flatten()
{new} = {any}.unsqueeze({d0})
{new} = {any}.squeeze()
{new} = {dims}.narrow({dim}, 0, 1)
{new} = {dims}.select({dim}, 0)
{new} = {any}[{index}]
{new} = {any}[{index}]
{new} = {any}[..., ::2]
{new} = {matrix}.diagonal()
{new} = {matrix}.t()
{new} = {matrix}.mT
{new} = {dims}.unfold({dim}, 2, 1)
{new} = torch.as_strided({float}, (2, 2), (1, 1))
{new}, *_ = {dims}.split(1, {dim})
{new}, *_ = {dims}.unbind({dim})
{new}, {new2} = {dims}.chunk(2, {dim})
{new} = {any}.expand(3, *{any}.shape)
{new} = {any}.expand_as({same})
{new} = torch.broadcast_to({any}, (2, *{any}.shape))
{new} = torch.view_as_real({complex})
{new} = {complex}.real
{new} = {complex}.imag
{new} = {complex}.conj()
{new} = {complex}.conj().imag
{new} = {any}.view(torch.int32)
{new} = {any}.view(torch.uint8)
{new} = {any}.detach()
{new} = {any}.data
{new} = {any}.view_as({any})
{new} = {dims}.movedim(0, {dim})
{new} = torch.atleast_2d({any})
{new} = {any}.alias_copy() if hasattr({any}, "alias_copy") else {any}
{new} = {any}.contiguous()
{new} = {image}.contiguous(memory_format=torch.channels_last)
{new} = {dims}.swapaxes(0, {dim})
{new} = torch.real({any})
"""

WORDS = {
    "fill": ["zeros", "ones"],
    "d": ["1", "2", "-1"],
    "d0": ["0", "-1", "1"],
    "n": ["0", "1", "2", "3", "4", "5", "7", "16"],
    "number": ["1", "2", "-1", "3", "0", "1.5", "-.25", "True", "1e-3", "2.0"],
    "dtype": [
        f"torch.{name}"
        for name in [
            "float32",
            "float64",
            "float16",
            "bfloat16",
            "int64",
            "int32",
            "int16",
            "int8",
            "uint8",
            "bool",
            "complex64",
            "complex128",
            "float32",
            "float32",
        ]
    ],
    "fdtype": [f"torch.{n}" for n in ("float32", "float64", "bfloat16", "float16")],
    "flag": ["True", "False"],
    "probability": [".1", ".5", ".3"],
}
