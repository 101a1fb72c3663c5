"""A word model in stretches, with states that are detached from stretch to stretch."""

import math

import torch
from torch import nn

torch.manual_seed(1111)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
text = "the cat sat on the mat and the dog sat on the cat and all was well " * 8
words = text.split()
vocabulary = {w: i for i, w in enumerate(dict.fromkeys(words))}
ids = torch.LongTensor(len(words))
for token, word in enumerate(words):
    ids[token] = vocabulary[word]
n_batch = ids.size(0) // 4
ids = ids.narrow(0, 0, n_batch * 4).view(4, -1).t().contiguous().to(device)


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=0.2)
        self.decoder = nn.Linear(nhid, ntoken)
        self.nlayers, self.nhid = nlayers, nhid
        self.init_weights()

    def init_weights(self):
        self.encoder.weight.data.uniform_(-0.1, 0.1)
        self.decoder.bias.data.fill_(0)
        self.decoder.weight.data.uniform_(-0.1, 0.1)

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(input)), hidden)
        output = self.drop(output)
        decoded = self.decoder(output.view(-1, output.size(2)))
        return decoded.view(output.size(0), output.size(1), -1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters()).data
        shape = (self.nlayers, bsz, self.nhid)
        return weight.new(*shape).zero_(), weight.new_zeros(shape)


def repackage_hidden(h):
    return (
        h.detach() if isinstance(h, torch.Tensor) else tuple(map(repackage_hidden, h))
    )


model = RNNModel(len(vocabulary), 8, 8, 2).to(device)
criterion = nn.CrossEntropyLoss()
lr, best = 5.0, None
for epoch in range(2):
    total_loss, hidden = 0.0, model.init_hidden(4)
    for batch, i in enumerate(range(0, ids.size(0) - 1, 7)):
        seq_len = min(7, len(ids) - 1 - i)
        data, targets = ids[i : i + seq_len], ids[i + 1 : i + 1 + seq_len].view(-1)
        hidden = repackage_hidden(hidden)
        model.zero_grad()
        output, hidden = model(data, hidden)
        loss = criterion(output.view(-1, len(vocabulary)), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad.data, alpha=-lr)
        total_loss += loss.item()
    mean = total_loss / (batch + 1)
    print(f"| epoch {epoch} | loss {mean:5.2f} | ppl {math.exp(mean):8.2f}")
    if best is None or mean < best:
        best = mean
    else:
        lr /= 4.0
