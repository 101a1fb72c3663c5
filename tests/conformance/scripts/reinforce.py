"""A policy gradient in a walk of its own making: draws, rewards, and their returns."""

from collections import deque

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.distributions import Categorical

torch.manual_seed(543)
eps = np.finfo(np.float32).eps.item()


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1, self.affine2 = nn.Linear(2, 16), nn.Linear(16, 2)
        self.dropout = nn.Dropout(p=0.1)
        self.saved_log_probs, self.rewards = [], []

    def forward(self, x):
        return F.softmax(self.affine2(F.relu(self.dropout(self.affine1(x)))), dim=1)


policy = Policy()
optimizer = optim.Adam(policy.parameters(), lr=1e-2)


def select_action(state):
    probs = policy(torch.from_numpy(state).float().unsqueeze(0))
    m = Categorical(probs)
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()


def finish_episode():
    R, returns, policy_loss = 0, deque(), []
    for r in policy.rewards[::-1]:
        R = r + 0.99 * R
        returns.appendleft(R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + eps)
    for log_prob, R in zip(policy.saved_log_probs, returns, strict=True):
        policy_loss.append(-log_prob * R)
    optimizer.zero_grad()
    loss = torch.cat(policy_loss).sum()
    loss.backward()
    optimizer.step()
    del policy.rewards[:], policy.saved_log_probs[:]
    return loss


for episode in range(5):
    state = np.array([0.0, 1.0])
    for _ in range(6):
        action = select_action(state)
        state = state + (np.array([0.5, 0.0]) if action else np.array([-0.5, 0.1]))
        policy.rewards.append(float(-abs(state[0] - 2)))
    total = sum(policy.rewards)
    print(
        f"Episode {episode}\tReward: {total:.2f}\tLoss: {finish_episode().item():.4f}"
    )
