"""Cells made at random, of writes, views, draws, flags and steps, that read values."""

import random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable


class RandomCell:
    """A pool of tensors, and what may be done with it next.

    Args:
        seed: Decides all that is done.
        n_acts: How many things.
    """

    def __init__(self, seed: int, n_acts: int) -> None:
        self.choice = random.Random(seed)
        self.n_acts = n_acts
        self.pool: list[Tensor] = [torch.randn(4, 4), torch.zeros(4, 4)]
        self.values: list[Any] = []
        self.generators = [torch.Generator().manual_seed(n) for n in range(2)]
        self.states: list[Tensor] = []
        self.model = nn.Sequential(
            nn.Linear(4, 4),
            self.choice.choice([nn.BatchNorm1d(4), nn.LayerNorm(4)]),
            self.choice.choice([nn.ReLU(), nn.RReLU()]),
            nn.Dropout(0.3),
            nn.Linear(4, 1),
        )
        made = self.choice.choice([torch.optim.SGD, torch.optim.Adam])
        self.optimizer = made(self.model.parameters(), lr=0.05)
        self.loss: Tensor = torch.zeros(())
        self.total = torch.zeros(())

    def run(self) -> list[Any]:
        acts: list[Callable[[], None]] = [
            *(self.make, self.write, self.view, self.combine, self.draw, self.forget),
            *(self.step, self.step, self.step_later, self.gather, self.set_state),
            *(self.set_flag, self.read, self.read, self.read_loss, self.read_state),
            *(self.draw_for_real, self.average, self.select),
        ]
        for _ in range(self.n_acts):
            self.choice.choice(acts)()
        self.read_state()
        self.values.append(self.total.item())
        self.values += [tensor.tolist() for tensor in self.pool]
        torch.set_float32_matmul_precision("highest")
        torch.set_flush_denormal(False)
        return self.values

    def pick(self) -> Tensor:
        return self.choice.choice(self.pool)

    def add(self, tensor: Tensor) -> None:
        self.pool.append(tensor.detach())

    def make(self) -> None:
        kind = self.choice.randrange(4)
        if kind == 0:
            self.add(torch.tensor([[self.choice.random()] * 4] * 4))
        elif kind == 1:
            self.add(torch.empty(4, 4).fill_(2.0))
        else:
            self.add(torch.randn(4, 4) if kind == 2 else torch.ones(4, 4))

    def write(self) -> None:
        target, kind = self.pick(), self.choice.randrange(7)
        if kind == 0:
            target.add_(self.pick().mean())
        elif kind == 1:
            target[self.choice.randrange(2) :].mul_(0.5)
        elif kind == 2:
            target.copy_(self.pick().clone())
        elif kind == 3:
            target.normal_(generator=self.choice.choice([None, *self.generators]))
        elif kind == 4:
            target.masked_fill_(target > 1, 0.25)
        elif kind == 5:
            target[:1] = 0.5
        else:
            target.zero_()

    def view(self) -> None:
        tensor = self.pick()
        self.add(tensor.t() if self.choice.random() < 0.5 else tensor.view(4, 4))

    def combine(self) -> None:
        a, b = self.pick(), self.pick()
        self.add((a @ b).tanh() if self.choice.random() < 0.5 else a * 0.5 + b)

    def draw(self) -> None:
        kind = self.choice.randrange(3)
        if kind == 0:
            self.add(nn.functional.dropout(self.pick(), 0.5))
        elif kind == 1:
            self.add(torch.rand(4, 4, generator=self.choice.choice(self.generators)))
        else:
            self.add(torch.bernoulli(self.pick().sigmoid()))

    def forget(self) -> None:
        if len(self.pool) > 2:
            self.pool.pop(self.choice.randrange(len(self.pool)))

    def step(self) -> None:
        self.loss = self.model(self.pick().clone()).square().mean()
        if self.choice.random() < 0.2:
            self.read_loss()
        self.optimizer.zero_grad(set_to_none=self.choice.random() < 0.7)
        self.loss.backward()
        if self.choice.random() < 0.3:
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.optimizer.step()

    def step_later(self) -> None:
        self.loss = self.model(torch.ones(4, 4)).abs().mean()
        self.loss.backward()

    def gather(self) -> None:
        self.total += self.loss.detach()

    def average(self) -> None:
        self.pool[0].mul_(0.5).add_(self.model[0].weight.detach())

    def select(self) -> None:
        chosen = self.pick().detach()
        self.values.append(tuple(chosen[chosen > 0].shape))

    def set_state(self) -> None:
        kind = self.choice.randrange(4)
        if kind == 0:
            self.states.append(torch.get_rng_state())
        elif kind == 1 and self.states:
            torch.set_rng_state(self.choice.choice(self.states))
        elif kind == 2:
            torch.manual_seed(self.choice.randrange(5))
        else:
            self.choice.choice(self.generators).manual_seed(self.choice.randrange(5))

    def set_flag(self) -> None:
        torch.set_float32_matmul_precision(self.choice.choice(["highest", "medium"]))
        torch.set_flush_denormal(self.choice.random() < 0.5)

    def read(self) -> None:
        tensor = self.pick()
        if self.choice.random() < 0.5:
            self.values.append(tensor.sum().item())
        else:
            self.values.append(tensor.tolist())

    def read_loss(self) -> None:
        self.values.append(self.loss.item())

    def read_state(self) -> None:
        self.values += [buffer.tolist() for buffer in self.model.buffers()]
        self.values.append(self.model[0].weight[0].tolist())

    def draw_for_real(self) -> None:
        with torch.device("cpu"):
            self.values.append(torch.rand(2).tolist())


def run_cell(seed: int, n_acts: int) -> list[Any]:
    """Return the values that a random cell reads."""
    torch.manual_seed(seed)
    return RandomCell(seed, n_acts).run()
