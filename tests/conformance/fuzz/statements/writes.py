"""Statements that write in place and into ``out=``, and that read values."""

WRITES = """
{constant}.{in_place}
{constant}.{in_place}
{float}.{in_place}
{constant}.add_({same})
{constant}.mul_({same})
{constant}.copy_({same})
{constant}.sub_({same}, alpha=2)
{constant} {augmented} {number}
{constant} {augmented} {same}
{constant}[{index}] = {number}
{constant}[{index}] = {number}
{constant}[{index}] = {one}
{constant}[{index}] {augmented} {number}
{constant}[{index}].zero_()
{constant}[0] = {same}
{constant}[{constant} > 0] = {number}
{constant}[torch.tensor([0, 0])] = {number}
{constant}.data.add_(1)
{float}.data.mul_(2)
{constant}.masked_fill_({constant} > 0, {number})
{constant}.index_fill_(0, torch.tensor([0]), {number})
{constant}.index_add_(0, torch.tensor([0]), {constant}[:1].clone())
{constant}.scatter_(0, torch.zeros_like({constant}, dtype=torch.long), {number})
{constant}.scatter_add_(0, torch.zeros_like({constant}, dtype=torch.long), torch.ones_like({constant}))
{constant}.index_copy_(0, torch.tensor([0]), {constant}[-1:].clone())
{constant}.put_(torch.tensor([0]), torch.ones(1, dtype={constant}.dtype))
{constant}.addcmul_({same}, {same2})
{constant}.set_({twin})
{constant}.resize_(2).fill_(1)
{constant}.swap_dims_(0, -1) if hasattr({constant}, "swap_dims_") else None
torch._foreach_add_([{constant}, {constant2}], 1)
torch._foreach_mul_([{floatconstant}], [2.])
F.relu({floatconstant}, inplace=True)
F.dropout({floatconstant}, {probability}, inplace=True)
with torch.no_grad(): {float}.add_(1)
with torch.no_grad(): {float}[{index}] = {number}
{new} = {constant}.view(-1); {new}.add_(1)
{constant}.t_()
torch.relu_({floatconstant})
"""  # noqa: E501

OUT = """
torch.{unary}({any}, out={twin})
{new} = torch.empty(0); torch.{unary}({floatconstant}, out={new})
torch.add({constant}, {same}, out={constant})
torch.mul({constant}, {number}, out={twin})
{new} = torch.empty({size}); torch.exp({floatconstant}, out={new})
{new} = torch.empty({shape}).t(); torch.cat([{matrix}, {matrix}], out={new})
{new} = torch.empty(0, dtype={constant}.dtype); torch.cat([{constant}, {constant}], out={new})
{new} = torch.empty((2, 4, 5, 5)).to(memory_format=torch.channels_last); torch.relu(torch.randn(2, 4, 5, 5)); torch.sin({image}, out={new})
{new} = torch.empty(0); {new2} = torch.empty(0, dtype=torch.long); torch.sort({floatconstant}, out=({new}, {new2}))
{new} = torch.empty({size}, dtype={floatconstant}.dtype); {new2} = torch.empty({size}, dtype=torch.long); torch.sort({floatconstant}, out=({new}, {new2}))
{new} = torch.empty(0); {new2} = torch.empty(0, dtype=torch.long); torch.max({floatconstant}, 0, out=({new}, {new2}))
{new} = torch.empty(2, 2); torch.arange(4, out={new})
{new} = torch.empty(4); torch.linspace(0, 1, 4, out={new})
{new} = torch.empty(3, 3); torch.mm(torch.randn(3, 4), torch.ones(4, 3), out={new})
{new} = torch.empty(3, 3).t(); torch.mm(torch.randn(3, 4), torch.ones(4, 3), out={new})
{new} = torch.empty(2); torch.rand(2, out={new})
{new} = torch.empty(3); torch.randn(3, out={new})
{new} = torch.empty(2, 3); torch.zeros(2, 3, out={new})
{new} = torch.empty(0); torch.stack([{floatconstant}, {floatconstant}], out={new})
{new} = torch.empty(0); torch.sum({floatconstant}, 0, out={new})
{new} = torch.empty(0); torch.index_select({floatconstant}, 0, torch.tensor([0]), out={new})
{new} = torch.zeros(2, 3, 4)[:, 1]; torch.add(torch.ones(2, 4), 1, out={new})
{new} = torch.empty(0, dtype=torch.bool); torch.gt({constant}, 0, out={new})
{new} = torch.empty(0); torch.cumsum({floatconstant}, 0, out={new})
"""  # noqa: E501

VALUES = """
{v} = {one}.item()
{v} = {any}.tolist()
{v} = bool(({any} > 0).any())
{v} = float({one})
{v} = int({any}.sum())
{v} = {any}.numpy().tolist()
{v} = torch.equal({any}, {same})
{v} = torch.allclose({float}, {float})
{v} = {any}.max().item()
{v} = [float(e) for e in {vector}]
if {any}.sum() > 0: {statement}
if {one} > 0: {new} = {one} * 2
{new} = {any} * {float}.sum().item()
{new} = torch.tensor([{one}.item(), 2.])
{v} = tuple({any}.shape), {any}.stride(), {any}.is_contiguous()
{v} = str({any}.dtype), {any}.requires_grad, {any}.is_leaf
{v} = {any}.data_ptr() == {any}.detach().data_ptr()
{v} = {any}.nonzero().shape[0]
{v} = {any}.sum().ge(0).item()
"""

IN_PLACE = """
add_(1)|mul_(2)|sub_(3)|div_(3)|zero_()|fill_(2)|exp_()|neg_()|abs_()|clamp_(0, 1)|sqrt_()
relu_()|sigmoid_()|tanh_()|round_()|floor_()|t_()|transpose_(0, -1)|unsqueeze_(0)|squeeze_()
pow_(2)|reciprocal_()|erf_()|cumsum_(0)|triu_()|tril_()|clamp_min_(.5)|nan_to_num_()|cos_()
fill_diagonal_(2)|fill_(True)|add_(1.5)|mul_(torch.tensor(2.))|copy_(torch.tensor(3))
"""  # noqa: E501

WORDS = {
    "in_place": IN_PLACE.strip().replace("\n", "|").split("|"),
    "augmented": ["+=", "-=", "*=", "/="],
}
