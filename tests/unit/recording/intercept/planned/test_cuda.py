"""``torch.cuda`` on a machine without a GPU, where a cell is recorded for one."""

from operator import attrgetter

import pytest
import torch
from torch import nn

from meta_magic import ValueLimits, record
from meta_magic.torch_private.snapshot import has_gpu
from tests.unit.eager import assert_same
from tests.unit.recording.intercept.data_of_cells import notes_of

pytestmark = pytest.mark.skipif(has_gpu(), reason="torch answers for its own GPU")

FACTS = {
    "cuda.is_available": True,
    "cuda.device_count": 8,
    "cuda.current_device": 0,
    "cuda.is_bf16_supported": True,
    "cuda.get_device_capability": (9, 0),
    "accelerator.current_accelerator": torch.device("cuda"),
}
TRUTHS = (
    "cuda.is_available",
    "cuda.device_count",
    "cuda.is_initialized",
    "accelerator.is_available",
)


def call(name, *args):
    """Call a function of torch, as it is now."""
    return attrgetter(name)(torch)(*args)


@pytest.mark.parametrize("name", FACTS)
def test_a_planned_machine_tells_what_it_has(name):
    with record(as_device="cuda:8"):
        assert call(name) == FACTS[name]


def test_a_script_that_asks_whether_bfloat16_is_there_is_told_so():
    before = torch.version.cuda
    with record(as_device="cuda:8"):
        is_there = (
            torch.version.cuda
            and torch.cuda.is_bf16_supported()
            and int(torch.version.cuda.split(".")[0]) >= 11
            and torch.cuda.nccl.version() >= (2, 10)
        )
    assert is_there
    with record(as_device="cpu"):
        assert torch.version.cuda == before


@pytest.mark.parametrize("name", TRUTHS)
def test_without_cuda_the_machine_has_no_gpu(name):
    assert_same(lambda: call(name), as_device="cpu")


def test_nothing_of_it_is_left_after_the_cell():
    names = ("is_available", "device_count", "Event", "Stream", "FloatTensor", "device")
    before = [getattr(torch.cuda, name) for name in names], torch.Generator
    with record(as_device="cuda"):
        pass
    assert ([getattr(torch.cuda, name) for name in names], torch.Generator) == before


def test_a_gpu_is_chosen():
    with record(as_device="cuda:2"):
        torch.cuda.set_device(1)
        assert torch.ones(1).cuda().device.index == 1
        with torch.cuda.device(0):
            assert torch.ones(1, device="cuda").device.index == 0
        assert torch.cuda.current_device() == 1


def test_a_gpu_that_there_is_not_to_be_is_refused():
    with record(as_device="cuda:2"):
        for ask in (torch.cuda.get_device_name, torch.cuda.set_device):
            with pytest.raises(RuntimeError, match="invalid device ordinal"):
                ask(7)


def test_memory_is_that_of_the_tensors_which_lie_there():
    with record(as_device="cuda") as trace:
        x = torch.ones(256, device="cuda")
        y = torch.ones(256, device="cpu")
        taken = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        free, total = torch.cuda.mem_get_info()
        del x
        assert torch.cuda.memory_allocated() == 0
    assert (taken, total - free, y.numel()) == ((1024, 1024), 1024, 256)
    assert "max_memory_allocated" in notes_of(trace)["memory"].text


def test_events_tell_the_time_and_streams_run_at_once():
    with record(as_device="cuda"):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x = torch.ones(3, device="cuda")
        x.record_stream(stream)
        torch.cuda.current_stream().wait_stream(stream)
        end.record()
        assert start.elapsed_time(end) > 0
        assert isinstance(end, torch.cuda.Event)
        assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream)


def test_a_type_of_cuda_makes_and_knows_tensors():
    with record():
        made = torch.cuda.FloatTensor([1.0, 2.0])
        assert (str(made.device), made.tolist()) == ("cuda:0", [1.0, 2.0])
        assert isinstance(made, torch.cuda.FloatTensor)
        assert not isinstance(torch.FloatTensor([1.0]), torch.cuda.FloatTensor)
        assert torch.ones(1).type(torch.cuda.HalfTensor).dtype == torch.half


def test_a_default_device_is_planned_in_the_cell_alone():
    with record() as trace:
        assert torch.get_default_device().type == "meta"
        torch.set_default_device("cuda")
        made = torch.ones(2), nn.Linear(2, 2).weight
        assert {str(tensor.device) for tensor in made} == {"cuda:0"}
        assert str(torch.get_default_device()) == "cuda:0"
        assert all(tensor.is_meta for tensor in made)
    assert torch.ones(1).device.type == "cpu"
    met = notes_of(trace)["state"].text
    assert met == "torch.set_default_device(cuda) was undone after the cell"


def test_a_scaler_whose_gradients_take_too_much_takes_its_step():
    with record(as_device="cuda", limits=ValueLimits(nbytes=0)) as trace:
        model = nn.Linear(3, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        with torch.autocast("cuda"):
            loss = model(torch.ones(4, 3, device="cuda")).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert notes_of(trace).keys().isdisjoint({"evaluated", "failed"})
    assert "are assumed to be" in notes_of(trace)["assumed"].text


@pytest.mark.parametrize("factor", [1.0, float("inf"), float("nan")])
def test_a_scaler_steps_as_on_the_cpu(factor):
    def train(device):
        torch.manual_seed(0)
        model = nn.Linear(3, 2).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device)
        for _ in range(2):
            loss = model(torch.ones(4, 3, device=device)).sum() * factor
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return model.weight.tolist(), scaler.get_scale()

    wanted = train("cpu")
    with record(as_device="cuda"):
        assert train("cuda") == wanted


def test_parallel_data_runs_as_one_replica():
    with record(as_device="cuda:2") as trace:
        model = nn.DataParallel(nn.Linear(3, 2)).cuda()
        out = model(torch.ones(4, 3))
        assert (out.shape, str(out.device)) == ((4, 2), "cuda:0")
        assert model.device_ids == [0, 1]
    assert notes_of(trace)["place"].text == (
        "DataParallel runs as one replica with the whole batch on cuda:0, not as 2 "
        "with a part each"
    )


PLACES = {
    "in a factory": lambda: torch.ones(2, device="cuda:99"),
    "in a move": lambda: torch.ones(2).to("cuda:99"),
    "as a number": lambda: torch.ones(2).cuda(99),
    "by default": lambda: torch.set_default_device("cuda:99"),
    "as a generator": lambda: torch.Generator(device="cuda:99"),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_place_that_there_is_not_to_be_is_refused(name):
    with record(as_device="cuda:8"), pytest.raises(RuntimeError, match="cuda:99 of 8"):
        PLACES[name]()


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_another_accelerator_is_a_plan_with_the_kernels_of_cuda(kind):
    with record() as trace:
        moved = nn.Linear(2, 2).to(kind)
        assert str(moved.weight.device) == f"{kind}:0"
    assert notes_of(trace)["place"].text == (
        f"what the code puts on {kind} is recorded with the kernels of CUDA"
    )


def test_a_file_is_loaded_onto_a_planned_gpu_with_its_values(tmp_path):
    state = {"model": nn.Linear(3, 2).state_dict(), "steps": [torch.ones(1)]}
    torch.save(state, tmp_path / "state.pt")
    with record(as_device="cuda"):
        loaded = torch.load(tmp_path / "state.pt", map_location="cuda")
        weight = loaded["model"]["weight"]
        assert (weight.is_meta, str(weight.device)) == (True, "cuda:0")
        assert str(loaded["steps"][0].device) == "cuda:0"
        model = nn.Linear(3, 2).cuda()
        model.load_state_dict(loaded["model"])
        assert model.weight.tolist() == state["model"]["weight"].tolist()


def test_a_factory_fills_what_lies_on_a_planned_device():
    with record():
        with torch.device("cuda"):
            eye = nn.init.eye_(torch.empty(2, 2))
        zeros = torch.ones(2, device="cuda")
        torch.zeros(2, out=zeros, device="cuda")
        with pytest.raises(RuntimeError, match="does not match device type of out"):
            torch.zeros(2, out=zeros, device="cpu")
        assert (eye.tolist(), zeros.tolist()) == ([[1, 0], [0, 1]], [0, 0])
        assert eye.device.type == zeros.device.type == "cuda"


def test_modules_are_parametrized_under_a_planned_device():
    with record(), torch.device("cuda"):
        layer = nn.utils.parametrizations.orthogonal(nn.Linear(4, 4))
        assert layer(torch.ones(2, 4)).shape == (2, 4)
        assert layer.weight.device.type == "cuda"
