"""How many models of the libraries beside transformers run recorded, at small sizes.

``python -m tests.conformance.library_sweep [LIBRARY...]`` prints the table: of each
model that builds, runs forward and does a training step on the CPU, whether it does
under ``record()``, with the same operators, shapes and dtypes, and whether what
``materialize`` makes of it then is equal to the bit.
"""

import argparse
import datetime as dt
import importlib
import importlib.util
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch import nn

import meta_magic as mm
from tests.conformance.exactness import differences, read_tensors, seed
from tests.conformance.libraries.cases import Case
from tests.conformance.model_runs import WRAPPERS, Log, Made, in_child, is_reading
from tests.conformance.model_sweep import find_difference

LIBRARIES = {
    "torchvision": "vision",
    "timm": "vision",
    "diffusers": "diffusion",
    "peft": "adapters",
    "lightning": "trainers",
    "accelerate": "trainers",
    "conformer": "sequences",
    "gateloop_transformer": "sequences",
    "linformer": "sequences",
    "local_attention": "sequences",
    "mambapy": "sequences",
    "ncps": "sequences",
    "perceiver_pytorch": "sequences",
    "performer_pytorch": "sequences",
    "pytorch_tabnet": "sequences",
    "pytorch_tcn": "sequences",
    "reformer_pytorch": "sequences",
    "tab_transformer_pytorch": "sequences",
    "titans_pytorch": "sequences",
    "x_transformers": "sequences",
    "denoising_diffusion_pytorch": "generation",
    "nflows": "generation",
    "normflows": "generation",
    "rectified_flow_pytorch": "generation",
    "siren_pytorch": "generation",
    "vector_quantize_pytorch": "generation",
    "e3nn": "geometry",
    "egnn_pytorch": "geometry",
    "point_transformer_pytorch": "geometry",
    "torch_geometric": "geometry",
    "asteroid": "sound",
    "encodec": "sound",
    "speechbrain": "sound",
    "torchaudio": "sound",
    "kornia": "pictures",
    "monai": "pictures",
    "segmentation_models_pytorch": "pictures",
    "slot_attention": "pictures",
    "vit_pytorch": "pictures",
    "gpytorch": "dynamics",
    "kan": "dynamics",
    "neuralop": "dynamics",
    "snntorch": "dynamics",
    "spikingjelly": "dynamics",
    "stable_baselines3": "agents",
    "torchdiffeq": "dynamics",
    "torchrl": "agents",
    "torchsde": "dynamics",
}
"""In which file of ``libraries/`` the function ``list_LIBRARY`` is."""
RUNS, STEPS, SAME, EQUAL = "forward", "training step", "as the CPU", "materialized"
LIMITS = mm.ValueLimits(2**30, 10**11)
"""What values may take: detectors choose boxes by those of a whole forward."""
COLUMNS = (RUNS, STEPS, SAME, EQUAL)
MARK = (1, 2, 3, 4)
"""Shape of a tensor that is made when a model is built: initializers are a row each."""


def run(case: Case, note: Callable[[str], None]) -> nn.Module:
    """Build a model, call it and train it once.

    Args:
        case: The model.
        note: Is told before each of these begins.
    """
    seed()
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        note(RUNS)
        module = case.build()
        torch.zeros(MARK)
        with torch.no_grad():
            case.call(module.eval())
        note(STEPS)
        case.train(module.train())
    return module


def run_real(case: Case) -> bool:
    """Run a model on the CPU, and return whether two runs give the same."""
    first, second = (read_tensors(run(case, str)) for _ in range(2))
    return not differences(first, second)


def list_real(case: Case) -> tuple[bytes, list[Made]]:
    """Return a model's tensors after training on the CPU, and what operators gave."""
    with Log() as log:
        module = run(case, str)
    file = io.BytesIO()
    torch.save(read_tensors(module), file)
    return file.getvalue(), log.made


def check(case: Case) -> dict[str, str]:
    """Return for each column why a model does not count there, or "".

    The real run is in a process of its own: libraries keep tensors in caches.
    """
    real, reason = in_child(list_real, case)
    if real is None:
        return dict.fromkeys(COLUMNS, reason)
    stage = [RUNS]
    try:
        with mm.record(as_device="cpu", limits=LIMITS) as trace:
            module = run(case, stage.append)
    except Exception as error:
        reason = describe(error)
        n_done = COLUMNS.index(stage[-1])
        return {title: reason if n >= n_done else "" for n, title in enumerate(COLUMNS)}
    direct, made = torch.load(io.BytesIO(real[0]), weights_only=False), real[1]
    return {
        RUNS: "",
        STEPS: "",
        SAME: find_difference(cut(made), cut(list_recorded(trace))),
        EQUAL: find_inequality(module, direct),
    }


def list_recorded(trace: mm.Trace) -> list[Made]:
    """Return what was recorded, as a real run notes it."""
    return [
        Made(
            op.op,
            [(t.shape, t.dtype) for t in op.outputs],
            [t.stride for t in op.outputs],
        )
        for op in trace.ops
        if not is_reading(op) and not is_lifting(op)
    ]


def is_lifting(op: mm.OpCall) -> bool:
    """Whether an operator is how a real tensor became a constant of the recording.

    On the CPU ``to`` copies where the dtype is another one: that is an operator there.
    """
    return op.op == "aten._to_copy.default" and all(
        a.device.type != "meta" and b.device.type == "meta" and a.dtype == b.dtype
        for a, b in zip(op.inputs, op.outputs, strict=True)
    )


def cut(made: list[Made]) -> list[Made]:
    """Return what came after the model was built, but for wrapped Python numbers."""
    shapes = [[shape for shape, _ in one.metadata] for one in made]
    return [one for one in made[shapes.index([MARK]) :] if one.op not in WRAPPERS]


def find_inequality(module: nn.Module, wanted: dict[str, torch.Tensor]) -> str:
    """Return how what is materialized differs from what was trained on the CPU."""
    try:
        report = mm.materialize(module)
    except Exception as error:
        return describe(error)
    found = differences(read_tensors(module), wanted, report.uninitialized)
    return "; ".join(found[:3])


def describe(error: Exception) -> str:
    """Return an error in a line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:400]


def sweep(library: str, words: list[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield for each model of a library that runs on the CPU what was found."""
    importlib.import_module(library)  # once, and not in each child
    file = importlib.import_module(f"tests.conformance.libraries.{LIBRARIES[library]}")
    for case in getattr(file, f"list_{library}")():
        if words and not any(word in case.name for word in words):
            continue
        found, reason = in_child(check, case)
        found = found or dict.fromkeys(COLUMNS, reason)
        if any(found.values()):
            is_stable, reason = in_child(run_real, case)
            if is_stable is None:
                print(f"- {library} {case.name}, for real: {reason}", file=sys.stderr)
                continue
            if not is_stable:
                found[EQUAL] = ""
        yield case.name, found


def is_installed(library: str) -> bool:
    """Whether a library can be imported; if not, say so."""
    is_found = importlib.util.find_spec(library) is not None
    if not is_found:
        print(f"- {library} is not installed", file=sys.stderr)
    return is_found


def count(library: str, found: list[dict[str, str]]) -> str:
    """Return the row of a library."""
    counts = [sum(not failures[title] for failures in found) for title in COLUMNS]
    shares = [f"{n} ({100 * n / max(1, len(found)):.1f} %)" for n in counts]
    return f"| {library} | {len(found)} | {' | '.join(shares)} |"


def main() -> None:
    """Print the table, and what does not count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries", nargs="*", default=list(LIBRARIES))
    parser.add_argument("--only", nargs="*", default=[], help="parts of models' names")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable()
    torch.set_num_threads(1)
    with mm.record():
        torch.nn.functional.gelu(torch.ones(2)).sum()
    day = dt.datetime.now(tz=dt.UTC).date()
    print(f"{day}, torch {torch.__version__}\n")
    print(f"| library | run on the CPU | {' | '.join(COLUMNS)} |")
    print("|---|" + (len(COLUMNS) + 1) * "--:|", flush=True)
    everything: list[Any] = []
    for library in filter(is_installed, options.libraries):
        found = []
        for name, failures in sweep(library, options.only):
            found.append(failures)
            for reason in filter(None, dict.fromkeys(failures.values())):
                titles = [title for title in COLUMNS if failures[title] == reason]
                text = f"- {library} {name}, {' and '.join(titles)}: {reason}"
                print(text, file=sys.stderr, flush=True)
        everything += found
        print(count(library, found), flush=True)
    print(count("all", everything))


if __name__ == "__main__":
    main()
