"""Generators of GPUs that are planned, and what is drawn there."""

import pytest
import torch

from meta_magic import record
from meta_magic.torch_private.snapshot import has_gpu

pytestmark = pytest.mark.skipif(has_gpu(), reason="torch draws on its own GPU")


def test_a_generator_of_a_gpu_is_a_plan():
    with record():
        generator = torch.Generator(device="cuda").manual_seed(0)
        assert isinstance(generator, torch.Generator)
        assert isinstance(torch.default_generator, torch.Generator)
        assert str(generator.device) == "cuda:0"
        drawn = torch.randn(3, device="cuda", generator=generator)
        assert str(drawn.device) == "cuda:0"
    assert isinstance(generator, torch.Generator)
    assert str(generator.device) == "cuda:0"


@pytest.mark.parametrize("own", ["cpu", "cuda"])
def test_a_generator_of_another_device_is_refused_in_torchs_words(own):
    place = {"cpu": "cuda", "cuda": "cpu"}[own]
    text = f"Expected a '{place}' device type for generator but found '{own}'"
    with record(), pytest.raises(RuntimeError, match=text):
        torch.randn(3, device=place, generator=torch.Generator(device=own))


def test_the_state_of_a_planned_generator_is_taken_and_put_back():
    with record(as_device="cuda"):
        torch.cuda.manual_seed(7)
        assert torch.cuda.initial_seed() == 7
        state = torch.cuda.get_rng_state()
        first = torch.randn(3, device="cuda").tolist()
        torch.cuda.set_rng_state(state)
        assert torch.randn(3, device="cuda").tolist() == first
        assert torch.randn(3, device="cuda").tolist() != first


SEEDINGS = {
    "all": lambda: torch.manual_seed(5),
    "all GPUs": lambda: torch.cuda.manual_seed_all(5),
    "a GPU": lambda: torch.cuda.manual_seed(5),
    "both": lambda: (torch.manual_seed(3), torch.cuda.manual_seed(5)),
}


@pytest.mark.parametrize("name", SEEDINGS)
def test_a_seed_repeats_what_is_drawn_on_a_gpu(name):
    def draw():
        SEEDINGS[name]()
        return torch.randn(3, device="cuda").tolist(), torch.cuda.initial_seed()

    with record(as_device="cuda"):
        torch.manual_seed(1)
        first, seed = draw()
        assert draw() == (first, seed) == (first, 5)
        torch.manual_seed(7)
        assert torch.randn(3, device="cuda").tolist() != first
        assert draw() == (first, seed)
        torch.manual_seed(5)
        assert torch.randn(3, device="cpu").tolist() != first


@pytest.mark.parametrize("device", ["cuda:3", "xpu", "mps"])
def test_a_seed_of_all_devices_repeats_what_any_draws(device):
    with record():
        drawn = []
        for seed in (5, 5, 6):
            torch.manual_seed(seed)
            drawn.append(torch.randn(3, device=device).tolist())
    assert drawn[0] == drawn[1] != drawn[2]


def draw_elsewhere():
    return torch.randn(3, device="cuda").tolist()


def draw_in_cells(between):
    """Return what two cells draw for a GPU, with real code between them."""
    with record():
        first = draw_elsewhere()
    between()
    with record():
        return first, draw_elsewhere()


@pytest.mark.parametrize("seed", [torch.manual_seed, torch.cuda.manual_seed_all])
def test_a_seed_between_cells_is_one_of_gpus_too(seed):
    torch.manual_seed(0)
    first, second = draw_in_cells(between=lambda: seed(0))
    assert first == second
