"""Answers to the exercises of the course: another right one, and what learners write.

The wrong ones are the usual ones of forums and courses, in our own words; beside each
is a part of the sentence that it gets. The last two of each exercise were written
before it was seen what is said of them.
"""

FAILS = "it fails"

ANSWERS = {
    "column": (
        "y = m.T[1]",
        [
            ("y = m[1]", "of an index are exchanged"),
            ("y = m[:, 1:2]", "1 dimension, not 2"),
            ("y = m[:, 1].clone()", "a copy, and a view is wanted"),
            ("y = m[:, 2]", "another position"),
            ("y = m.view(C, R)[1]", "y[2] is computed from m[1, 1]"),
        ],
    ),
    "by_hand": (
        "y = x.view(N, M).T",
        [
            ("y = x.view(M, N)", "y[3, 1] is computed from x[10]"),
            ("y = x.as_strided((M, N), (N, 1))", "y[3, 1] is computed from x[10]"),
            ("y = x.as_strided((N, M), (M, 1))", "the result of as_strided"),
            ("y = x.as_strided((M, N), (1, N))", "y[3, 2] is computed from x[9]"),
            ("y = x.view(N, M).T.contiguous()", "a copy, and a view is wanted"),
        ],
    ),
    "evens": (
        "y = x.view(-1, 2)[:, 0]",
        [
            ("y = x[1::2]", "a slice begins off by one"),
            ("y = x[:N // 2]", "y[5] is computed from x[5]"),
            ("y = x[torch.arange(0, N, 2)]", "a copy, and a view is wanted"),
            ("y = x[x % 2 == 0]", "a copy, and a view is wanted"),
            (
                "y = x.view(N // 2, 2)[0]",
                "0 and 1 of an index are exchanged",
            ),
        ],
    ),
    "zip_rows": (
        "y = torch.stack([a, b], dim=1).flatten(0, 1)",
        [
            ("y = torch.cat([a, b])", "stack is along dimension 0"),
            ("y = torch.stack([a, b]).view(2 * N, D)", "stack is along dimension 0"),
            ("y = torch.cat([a, b], 1)", "dimensions 0 and 1 have other sizes"),
            ("y = torch.stack([a, b], 2).view(2 * N, D)", "stack is along dimension 2"),
            ("y = torch.stack([a, b]).transpose(0, 1)", "view is missing"),
        ],
    ),
    "outer": (
        "x = a.unsqueeze(1) + b",
        [
            (
                "x = a + b[:, None]",
                "the result of add has dimensions 0 and 1 exchanged",
            ),
            ("x = a + b", "must equal dimension 0 of b"),
            ("x = torch.outer(a, b)", "mul is called, and add"),
            (
                "x = a.repeat(M).view(N, M) + b",
                "repeat is called, and repeat_interleave",
            ),
            ("x = a[:, None] * b", "mul is called, and add"),
        ],
    ),
    "center": (
        "c = (x.T - x.mean(1)).T",
        [
            ("c = x - x.mean(1)", "of that size: keepdim=True"),
            ("c = x - x.mean()", "c[3, 3] is computed from x[:, :]"),
            ("c = x - x.mean(0)", "mean is along dimension 0"),
            ("c = x - x.sum(1, keepdim=True)", "sum is called, and mean"),
            ("c = x.T - x.mean(1)", "dimensions 0 and 1 are exchanged"),
        ],
    ),
    "distances": (
        "d = (a ** 2).sum(1)[:, None] + (b ** 2).sum(1) - 2 * a @ b.T",
        [
            ("d = ((a - b) ** 2).sum(-1)", FAILS),
            ("d = ((a[:, None] - b) ** 2).sum(1)", "sum is along dimension 1"),
            ("d = torch.cdist(a, b)", "the square roots of the right ones"),
            ("d = ((a[:, None] - b) ** 2).mean(-1)", "mean is called, and sum"),
            ("d = (a[:, None] - b).sum(-1) ** 2", "sum is before pow"),
        ],
    ),
    "scores": (
        "s = torch.einsum('bqd,bkd->bqk', q, k)",
        [
            ("s = q @ k", FAILS),
            (
                "s = k @ q.transpose(1, 2)",
                "the result of matmul has dimensions 1 and 2",
            ),
            ("s = q @ k.T", FAILS),
            ("s = q @ k.view(B, D, K)", "permute or transpose moves"),
            ("s = q @ k.transpose(1, 2) / D ** 0.5", "div is called with 2.0"),
        ],
    ),
    "weighted": (
        "y = torch.einsum('bqk,bke->bqe', w, v)",
        [
            ("y = w.transpose(1, 2) @ v", "transpose is one step too much"),
            ("y = (w * v).sum(1)", FAILS),
            ("y = w @ v.transpose(1, 2)", FAILS),
            ("y = w.softmax(-1) @ v", "softmax is one step too much"),
            ("y = (w[..., None] * v[:, None]).mean(2)", "mean is called, and sum"),
        ],
    ),
    "windows": (
        "n = F.conv1d(torch.zeros(1, 1, S), torch.zeros(1, 1, K), None, T, P).shape[2]",
        [
            ("n = S // T", "it does not change with K and P"),
            ("n = (S + 2 * P - K) // T", "it is always -1 off"),
            ("n = (S + P - K) // T + 1", "it grows by 2 with 3 more for S, and 1"),
            ("n = (S + 2 * P - K + 1) // T", "it grows by 2 with 3 more for S, and 1"),
            ("n = (S + 2 * P) // T - K + 1", "it grows by 1 with 3 more for S, and 2"),
        ],
    ),
    "tiles": (
        "y = x.unfold(0, P, P).unfold(1, P, P)",
        [
            ("y = x.view(H // P, W // P, P, P)", "a transpose is wanted"),
            ("y = x.view(H // P, P, W // P, P)", "transpose is missing"),
            (
                "y = x.view(H // P, P, W // P, P).transpose(1, 2).contiguous()",
                "a copy, and a view is wanted",
            ),
            (
                "y = x.view(H // P, P, W // P, P).permute(0, 2, 3, 1)",
                "the input of permute has dimensions 1 and 3",
            ),
            (
                "y = x.view(H // P, P, W // P, P).permute(2, 0, 1, 3)",
                "the input of permute has dimensions 0 and 2",
            ),
        ],
    ),
    "last_step": (
        "out, (h, c) = lstm(x)\ny = h[-1]",
        [
            ("y = lstm(x)[0][-1]", "takes the last of 4 samples"),
            ("y = lstm(x)[0].mean(1)", "the mean of dimension 1 is taken"),
            ("y = lstm(x)[0]", "indexing is missing"),
            ("_, (h, c) = lstm(x)\ny = c[0]", "another one of the results of lstm"),
            ("y = lstm(x)[0][:, 0]", "another position"),
        ],
    ),
    "time_first": (
        "y = gru(x.permute(1, 0, 2))[0].permute(1, 0, 2)",
        [
            ("y = gru(x)[0]", "y[3, 3, 4] is computed from x[:, 3, :]"),
            ("y = gru(x.transpose(0, 1))[0]", "transpose is missing"),
            ("y = gru(x.view(T, B, D))[0].transpose(0, 1)", "a transpose is wanted"),
            (
                "y = gru(x.transpose(0, 1))[0].reshape(B, T, 5)",
                "dimensions have to be exchanged before reshape",
            ),
            ("y = gru(x.transpose(0, 1))[1][0]", "3 dimensions, not 2"),
        ],
    ),
    "heads": (
        "y = x.reshape(B, T, H, D).permute(0, 2, 1, 3).contiguous()",
        [
            ("y = x.view(B, H, T, D)", "a transpose is wanted"),
            ("y = x.view(B, T, H, D)", "transpose is missing"),
            (
                "y = x.view(2, 5, 3, 4).transpose(1, 2)",
                "it fails with B=3, T=4, H=2, and is right at",
            ),
            (
                "y = x.view(B, T, D, H).permute(0, 3, 1, 2)",
                "y[1, 2, 4, 2] is computed from x[1, 4, 8]",
            ),
            (
                "y = x.view(B, T, H, D).permute(0, 2, 3, 1)",
                "the input of permute has dimensions 1 and 3",
            ),
        ],
    ),
    "merge": (
        "x = y.permute(0, 2, 1, 3).flatten(2)",
        [
            (
                "x = y.reshape(B, T, H * D)",
                "dimensions have to be exchanged before reshape",
            ),
            ("x = y.transpose(1, 2).view(B, T, H * D)", "view size is not compatible"),
            ("x = y.transpose(1, 2).flatten(1)", "3 dimensions, not 2"),
            (
                "x = y.permute(0, 2, 3, 1).reshape(B, T, H * D)",
                "the input of permute has dimensions 1 and 3",
            ),
            (
                "x = y.transpose(1, 3).reshape(B, T, H * D)",
                "transpose is along dimension 3",
            ),
        ],
    ),
    "causal": (
        "i = torch.arange(T)\ny = torch.where(i[:, None] >= i, s, -torch.inf)",
        [
            ("y = s.tril()", "masked_fill is called with 0"),
            (
                "y = s.masked_fill(torch.ones(T, T).tril().bool(), -torch.inf)",
                "mask is inverted",
            ),
            (
                "y = s.masked_fill(torch.ones(T, T).triu().bool(), -torch.inf)",
                "triu is called with 0",
            ),
            (
                "y = s.masked_fill(torch.ones(T, T).triu(1).bool(), 0)",
                "0 stands where -inf is wanted",
            ),
            (
                "y = s + torch.ones(T, T).triu(1) * -torch.inf",
                "40 are nan, and should not be",
            ),
        ],
    ),
    "loss": (
        "loss = F.mse_loss(p[:, 0], t)",
        [
            ("loss = F.mse_loss(p, t)", "broadcast (6, 1) with (6,)"),
            ("loss = ((p - t) ** 2).mean()", "broadcast (6, 1) with (6,)"),
            ("loss = ((p.squeeze(1) - t) ** 2).sum()", "sum is called, and mean"),
            ("loss = (p[:, 0] - t).mean() ** 2", "mean is before pow"),
            ("loss = F.l1_loss(p[:, 0], t)", "l1_loss is called, and mse_loss"),
        ],
    ),
    "picked": (
        "y = -F.cross_entropy(logits, labels, reduction='none')",
        [
            (
                "y = logits.log_softmax(0).gather(1, labels[:, None])[:, 0]",
                "log_softmax is along dimension 0",
            ),
            ("y = logits.log_softmax(1)[:, labels]", "1 dimension, not 2"),
            ("y = logits.gather(1, labels[:, None])[:, 0]", "log_softmax is missing"),
            (
                "y = F.cross_entropy(logits, labels, reduction='none')",
                "with the other sign",
            ),
            (
                "y = logits.softmax(1).gather(1, labels[:, None])[:, 0]",
                "softmax is called, and log_softmax",
            ),
        ],
    ),
    "adam": (
        "n = 16 * (I * O + O)",
        [
            ("n = 16 * I * O", "it grows by 144 with 3 more for O, and 192"),
            ("n = 12 * (I * O + O)", "it is always 0.75 times"),
            ("n = 4 * (I * O + O)", "it is always 0.25 times"),
            ("n = 16 * (I * O + I)", "it grows by 240 with 3 more for I"),
            (
                "n = 16 * sum(1 for p in model.parameters())",
                "it does not change with I and O",
            ),
        ],
    ),
    "running": (
        "with torch.no_grad():\n    total = torch.stack(losses).sum()",
        [
            ("total = sum(losses)", "its whole graph"),
            ("total = losses[-1].detach()", "add is missing"),
            ("total = torch.stack(losses).mean().detach()", "mean is called, and sum"),
            ("total = sum(l.item() for l in losses)", "total is float, and no tensor"),
            (
                "total = sum(l.detach() for l in losses) / K",
                "0.25 times what is wanted",
            ),
        ],
    ),
}
