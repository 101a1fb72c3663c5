"""Sentences of several lengths through a packed GRU."""

import torch
from torch import nn
from torch.autograd import Variable
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.manual_seed(5)
names = ["adylov", "solan", "hard", "san"]
vectorized = [[ord(c) - ord("a") for c in name] for name in names]
seq_lengths = torch.LongTensor([len(v) for v in vectorized])
seq_tensor = torch.zeros((len(vectorized), seq_lengths.max())).long()
for idx, (seq, seq_len) in enumerate(zip(vectorized, seq_lengths, strict=True)):
    seq_tensor[idx, :seq_len] = torch.LongTensor(seq)
seq_lengths, perm_idx = seq_lengths.sort(0, descending=True)
seq_tensor = seq_tensor[perm_idx]
target = Variable(torch.LongTensor([0, 1, 1, 0]))[perm_idx]


class Classifier(nn.Module):
    def __init__(self, bidirectional=True):
        super().__init__()
        self.n_directions = int(bidirectional) + 1
        self.embedding = nn.Embedding(26, 6)
        self.gru = nn.GRU(6, 6, 1, bidirectional=bidirectional)
        self.fc = nn.Linear(6, 2)

    def forward(self, input, seq_lengths):
        input = input.t()
        hidden = Variable(torch.zeros(self.n_directions, input.size(1), 6))
        packed = pack_padded_sequence(self.embedding(input), seq_lengths.cpu().numpy())
        output, hidden = self.gru(packed, hidden)
        output, lengths = pad_packed_sequence(output)
        print("output", tuple(output.size()), lengths.tolist())
        return self.fc(hidden[-1])


classifier = Classifier()
optimizer = torch.optim.Adam(classifier.parameters(), lr=0.05)
for _ in range(4):
    loss = nn.CrossEntropyLoss()(classifier(seq_tensor, seq_lengths), target)
    classifier.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(classifier.parameters(), 0.25)
    optimizer.step()
    print("loss", loss.data.item())
