"""A small translator with masks of padding, and a greedy decoder."""

import numpy as np
import torch
from torch import nn

torch.manual_seed(4)
src_vocab = {"P": 0, "ich": 1, "mochte": 2, "ein": 3, "bier": 4}
tgt_vocab = {"P": 0, "i": 1, "want": 2, "a": 3, "beer": 4, "S": 5, "E": 6}
names = {i: w for w, i in tgt_vocab.items()}
enc_inputs = torch.LongTensor([[1, 2, 3, 4, 0]])
dec_inputs = torch.LongTensor([[5, 1, 2, 3, 4]])
targets = torch.LongTensor([[1, 2, 3, 4, 6]])
d_model, d_k, n_heads = 16, 8, 2


def sinusoids(n_position, d_model):
    table = np.array(
        [
            [pos / np.power(10000, 2 * (j // 2) / d_model) for j in range(d_model)]
            for pos in range(n_position)
        ]
    )
    table[:, 0::2], table[:, 1::2] = np.sin(table[:, 0::2]), np.cos(table[:, 1::2])
    return torch.FloatTensor(table)


def pad_mask(seq_q, seq_k):
    pad = seq_k.data.eq(0).unsqueeze(1)
    return pad.expand(seq_q.size(0), seq_q.size(1), seq_k.size(1))


def subsequent_mask(seq):
    mask = np.triu(np.ones([seq.size(0), seq.size(1), seq.size(1)]), k=1)
    return torch.from_numpy(mask).byte()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.W_Q, self.W_K, self.W_V = (nn.Linear(d_model, 16) for _ in range(3))
        self.out, self.norm = nn.Linear(16, d_model), nn.LayerNorm(d_model)

    def forward(self, Q, K, V, mask):
        q, k, v = (
            layer(x).view(x.size(0), -1, n_heads, d_k).transpose(1, 2)
            for layer, x in ((self.W_Q, Q), (self.W_K, K), (self.W_V, V))
        )
        scores = torch.matmul(q, k.transpose(-1, -2)) / np.sqrt(d_k)
        scores.masked_fill_(mask.unsqueeze(1).repeat(1, n_heads, 1, 1), -1e9)
        context = nn.Softmax(dim=-1)(scores).matmul(v).transpose(1, 2).contiguous()
        return self.norm(self.out(context.view(Q.size(0), -1, 16)) + Q)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.src_emb, self.tgt_emb = nn.Embedding(5, d_model), nn.Embedding(7, d_model)
        self.pos = nn.Embedding.from_pretrained(sinusoids(6, d_model), freeze=True)
        self.enc, self.self_attn, self.cross = Attention(), Attention(), Attention()
        self.projection = nn.Linear(d_model, 7, bias=False)

    def forward(self, enc_inputs, dec_inputs):
        positions = torch.LongTensor([list(range(enc_inputs.size(1)))])
        x = self.src_emb(enc_inputs) + self.pos(positions)
        x = self.enc(x, x, x, pad_mask(enc_inputs, enc_inputs))
        y = self.tgt_emb(dec_inputs) + self.pos(torch.arange(dec_inputs.size(1)))
        later = subsequent_mask(dec_inputs)
        mask = torch.gt(pad_mask(dec_inputs, dec_inputs) + later, 0)
        y = self.self_attn(y, y, y, mask)
        y = self.cross(y, x, x, pad_mask(dec_inputs, enc_inputs))
        return self.projection(y).view(-1, 7)


model = Transformer()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for epoch in range(12):
    optimizer.zero_grad()
    loss = nn.CrossEntropyLoss()(model(enc_inputs, dec_inputs), targets.view(-1))
    if (epoch + 1) % 4 == 0:
        print("Epoch:", "%04d" % (epoch + 1), "cost =", f"{loss:.6f}")
    loss.backward()
    optimizer.step()
greedy, next_symbol = torch.zeros(1, 5).type_as(enc_inputs.data), 5
for i in range(5):
    greedy[0][i] = next_symbol
    prob = model(enc_inputs, greedy).max(dim=-1, keepdim=False)[1]
    next_symbol = prob.data[i].item()
print([names[n.item()] for n in greedy.squeeze()], names[next_symbol])
