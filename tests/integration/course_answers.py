"""Answers to the exercises of the course: another right one, and what learners write.

The wrong ones are the usual ones of forums and courses, in our own words; beside each
is a part of the sentence that it gets.
"""

ORDER = "same ones in another order"
FAILS = "it fails"

ANSWERS = {
    "column": (
        "y = m.T[1]",
        [
            ("y = m[1]", "dimension 0 has another size"),
            ("y = m[:, 1:2]", "1 dimension, not 2"),
            ("y = m[:, 1].clone()", "a copy, and a view is wanted"),
        ],
    ),
    "by_hand": (
        "y = x.view(N, M).T",
        [
            ("y = x.view(M, N)", ORDER),
            ("y = x.as_strided((M, N), (N, 1))", ORDER),
            ("y = x.as_strided((N, M), (M, 1))", "their order is not"),
        ],
    ),
    "evens": (
        "y = x.view(-1, 2)[:, 0]",
        [
            ("y = x[1::2]", "each is +1 off"),
            ("y = x[:N // 2]", "are wrong; the first, at [1]"),
            ("y = x[torch.arange(0, N, 2)]", "a copy, and a view is wanted"),
        ],
    ),
    "zip_rows": (
        "y = torch.stack([a, b], dim=1).flatten(0, 1)",
        [
            ("y = torch.cat([a, b])", ORDER),
            ("y = torch.stack([a, b]).view(2 * N, D)", ORDER),
            ("y = torch.cat([a, b], 1)", "dimensions 0 and 1 have other sizes"),
        ],
    ),
    "outer": (
        "x = a.unsqueeze(1) + b",
        [
            ("x = a + b[:, None]", "their order is not"),
            ("x = a + b", "must equal dimension 0 of b"),
            ("x = torch.outer(a, b)", "other numbers"),
        ],
    ),
    "center": (
        "c = (x.T - x.mean(1)).T",
        [
            ("c = x - x.mean(1)", "of that size: keepdim=True"),
            ("c = x - x.mean()", "are wrong"),
            ("c = x - x.mean(0)", "are wrong"),
        ],
    ),
    "distances": (
        "d = (a ** 2).sum(1)[:, None] + (b ** 2).sum(1) - 2 * a @ b.T",
        [
            ("d = ((a - b) ** 2).sum(-1)", FAILS),
            ("d = ((a[:, None] - b) ** 2).sum(1)", "dimension 1 has another size"),
            ("d = torch.cdist(a, b)", "are wrong"),
        ],
    ),
    "scores": (
        "s = torch.einsum('bqd,bkd->bqk', q, k)",
        [
            ("s = q @ k", FAILS),
            ("s = k @ q.transpose(1, 2)", "their order is not"),
            ("s = q @ k.T", FAILS),
        ],
    ),
    "weighted": (
        "y = torch.einsum('bqk,bke->bqe', w, v)",
        [
            ("y = w.transpose(1, 2) @ v", "are wrong"),
            ("y = (w * v).sum(1)", FAILS),
            ("y = w @ v.transpose(1, 2)", FAILS),
        ],
    ),
    "windows": (
        "n = F.conv1d(torch.zeros(1, 1, S), torch.zeros(1, 1, K), None, T, P).shape[2]",
        [
            ("n = S // T", "wanted with S=31, and is right at the given sizes"),
            ("n = (S + 2 * P - K) // T", "n is 13, and 14 is wanted"),
            (
                "n = (S + P - K) // T + 1",
                "wanted with S=31, and is right at the given sizes",
            ),
        ],
    ),
    "tiles": (
        "y = x.unfold(0, P, P).unfold(1, P, P)",
        [
            ("y = x.view(H // P, W // P, P, P)", ORDER),
            ("y = x.view(H // P, P, W // P, P)", "their order is not"),
            (
                "y = x.view(H // P, P, W // P, P).transpose(1, 2).contiguous()",
                "a copy, and a view is wanted",
            ),
        ],
    ),
    "last_step": (
        "out, (h, c) = lstm(x)\ny = h[-1]",
        [
            ("y = lstm(x)[0][-1]", "dimension 0 has another size"),
            ("y = lstm(x)[0].mean(1)", "are wrong"),
            ("y = lstm(x)[0]", "2 dimensions, not 3"),
        ],
    ),
    "time_first": (
        "y = gru(x.permute(1, 0, 2))[0].permute(1, 0, 2)",
        [
            ("y = gru(x)[0]", "are wrong"),
            ("y = gru(x.transpose(0, 1))[0]", "dimensions are in another order"),
            ("y = gru(x.view(T, B, D))[0].transpose(0, 1)", "are wrong"),
        ],
    ),
    "heads": (
        "y = x.reshape(B, T, H, D).permute(0, 2, 1, 3).contiguous()",
        [
            ("y = x.view(B, H, T, D)", ORDER),
            ("y = x.view(B, T, H, D)", "their order is not"),
            (
                "y = x.view(2, 5, 3, 4).transpose(1, 2)",
                "it fails with B=3, T=4, H=2, and is right at",
            ),
        ],
    ),
    "merge": (
        "x = y.permute(0, 2, 1, 3).flatten(2)",
        [
            ("x = y.reshape(B, T, H * D)", ORDER),
            ("x = y.transpose(1, 2).view(B, T, H * D)", "view size is not compatible"),
            ("x = y.transpose(1, 2).flatten(1)", "3 dimensions, not 2"),
        ],
    ),
    "causal": (
        "i = torch.arange(T)\ny = torch.where(i[:, None] >= i, s, -torch.inf)",
        [
            ("y = s.tril()", "are wrong"),
            ("y = s.masked_fill(torch.ones(T, T).tril().bool(), -torch.inf)", "wrong"),
            ("y = s.masked_fill(torch.ones(T, T).triu().bool(), -torch.inf)", "wrong"),
        ],
    ),
    "loss": (
        "loss = F.mse_loss(p[:, 0], t)",
        [
            ("loss = F.mse_loss(p, t)", "broadcast (6, 1) with (6,)"),
            ("loss = ((p - t) ** 2).mean()", "broadcast (6, 1) with (6,)"),
            ("loss = ((p.squeeze(1) - t) ** 2).sum()", "6 times what is wanted"),
        ],
    ),
    "picked": (
        "y = -F.cross_entropy(logits, labels, reduction='none')",
        [
            ("y = logits.log_softmax(0).gather(1, labels[:, None])[:, 0]", "are wrong"),
            ("y = logits.log_softmax(1)[:, labels]", "1 dimension, not 2"),
            ("y = logits.gather(1, labels[:, None])[:, 0]", "are wrong"),
        ],
    ),
    "adam": (
        "n = 16 * (I * O + O)",
        [
            ("n = 16 * I * O", "n is 192, and 256 is wanted"),
            ("n = 12 * (I * O + O)", "n is 192, and 256 is wanted"),
            ("n = 4 * (I * O + O)", "n is 64, and 256 is wanted"),
        ],
    ),
    "running": (
        "with torch.no_grad():\n    total = torch.stack(losses).sum()",
        [
            ("total = sum(losses)", "its whole graph"),
            ("total = losses[-1].detach()", "other numbers"),
            ("total = torch.stack(losses).mean().detach()", "other numbers"),
        ],
    ),
}
