"""Skip-gram with rows of an identity matrix, as in short word2vec tutorials."""

import numpy as np
import torch
from torch import nn, optim

torch.manual_seed(0)
rng = np.random.default_rng(0)
dtype = torch.FloatTensor
sentences = ["apple banana fruit", "banana orange fruit", "dog cat animal", "cat dog"]
word_sequence = " ".join(sentences).split()
word_list = sorted(set(word_sequence))
word_dict = {w: i for i, w in enumerate(word_list)}
voc_size = len(word_list)

skip_grams = []
for i in range(1, len(word_sequence) - 1):
    target = word_dict[word_sequence[i]]
    for neighbour in (word_sequence[i - 1], word_sequence[i + 1]):
        skip_grams.append([target, word_dict[neighbour]])


def random_batch():
    picked = rng.choice(range(len(skip_grams)), 4, replace=False)
    inputs = [np.eye(voc_size)[skip_grams[i][0]] for i in picked]
    return inputs, [skip_grams[i][1] for i in picked]


class Word2Vec(nn.Module):
    def __init__(self):
        super().__init__()
        self.W = nn.Parameter(-2 * torch.rand(voc_size, 2) + 1).type(dtype)
        self.WT = nn.Parameter(-2 * torch.rand(2, voc_size) + 1).type(dtype)

    def forward(self, X):
        return torch.matmul(torch.matmul(X, self.W), self.WT)


model = Word2Vec()
criterion = nn.CrossEntropyLoss()
optimizer = optim.Adam(model.parameters(), lr=0.01)
for epoch in range(60):
    input_batch, target_batch = random_batch()
    input_batch = torch.Tensor(np.array(input_batch))
    target_batch = torch.LongTensor(target_batch)
    optimizer.zero_grad()
    loss = criterion(model(input_batch), target_batch)
    loss.backward()
    optimizer.step()
    if (epoch + 1) % 20 == 0:
        print("Epoch:", "%04d" % (epoch + 1), "cost =", f"{loss:.6f}")
W, _ = model.parameters()
for i, label in enumerate(word_list):
    print(label, round(float(W[i][0]), 3), round(W[i][1].item(), 3))
