"""What ``materialize()`` costs beside what one would write without it.

``python -m tests.benchmarks.materialize`` prints two Markdown tables. Times: both ways
take turns in one process, so that what loads the machine loads both alike. Memory:
each number is from a fresh process (Linux).
"""

import argparse
import gc
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

import meta_magic as mm

GOAL = 1.1
SAMPLING_SECONDS = 0.001
PAGE_NBYTES = 4096
QUICK_SECONDS = 1.0
N_QUICK = 7
"""How many times as many rounds there are of what is quick."""

REPLAY = "replay, eager"
EMPTY = "empty, to_empty"
LOAD = "load, assign"
READ = "load, assign; read"

Options = dict[str, int]
Build = Callable[[Options], nn.Module]

LLAMA = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 20,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32_000,
}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def build_gpt2(options: Options) -> nn.Module:
    """GPT-2 with 124 million parameters, tied; float32."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(**options))


def build_llama(options: Options) -> nn.Module:
    """Llama with a billion parameters; float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**(LLAMA | options)))


def build_hybrid(options: Options) -> nn.Module:
    """Llama in bfloat16, with rotary buffers that no checkpoint has."""
    return build_llama(options).bfloat16()


def build_bare(options: Options) -> nn.Module:
    """The same without the buffers: a checkpoint has all there is."""
    model = build_hybrid(options)
    del model.model.rotary_emb
    return model


BUILDS: dict[str, Build] = {
    "gpt2": build_gpt2,
    "llama-1b": build_llama,
    "llama-1b-bf16": build_hybrid,
    "llama-1b-bf16-bare": build_bare,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to a real model.

    Attributes:
        prepare: Makes what ``run`` takes; timed on its own.
        run: What is measured; returns the model, or the report on the one it took.
    """

    prepare: Callable[[], Any]
    run: Callable[[Any], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """A way with :func:`meta_magic.materialize` beside the way without it.

    Attributes:
        name: What is done.
        model: Which model, as in ``BUILDS``.
        ways: With it, and without it.
    """

    name: str
    model: str
    ways: tuple[Way, Way]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one run of a way.

    Attributes:
        prepared: Wall time of what came before.
        wall: Wall time.
        cpu: CPU time of all threads; other processes do not count in it.
    """

    prepared: float
    wall: float
    cpu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Memory of one run of a way, in bytes.

    Attributes:
        nbytes: Size of the model's parameters.
        resident: Most growth of the resident memory, pages of mapped files counted in.
        anonymous: Most growth of what is not a file's, sampled each millisecond.
        planned: What the report says; None without a report.
    """

    nbytes: int
    resident: int
    anonymous: int
    planned: int | None


def record(build: Build, options: Options) -> nn.Module:
    """Build under a recording."""
    with mm.record():
        return build(options)


def build_on_meta(build: Build, options: Options) -> nn.Module:
    """Build on plain meta."""
    with torch.device("meta"):
        return build(options)


def assign_file(path: Path, model: nn.Module) -> nn.Module:
    """Load as one does without materialize; non-persistent buffers stay on meta."""
    model.load_state_dict(load_file(path), assign=True)
    return model


def load_and_read(load: Callable[[nn.Module], object], model: nn.Module) -> object:
    """Load, and read from each page: what is mapped from a file comes in only then."""
    result = load(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.view(-1)[:: PAGE_NBYTES // parameter.itemsize].sum()
    return result


def list_contests(path: Path, options: Options) -> list[Contest]:
    """Return all rows for models of a size, and a file of weights of that size."""
    contests = []
    for name in ("gpt2", "llama-1b"):
        recorded = partial(record, BUILDS[name], options)
        eager = Way(prepare=lambda: options, run=BUILDS[name])
        ours = Way(prepare=recorded, run=mm.materialize)
        contests.append(Contest(name=REPLAY, model=name, ways=(ours, eager)))
    for name in ("gpt2", "llama-1b"):
        plain = partial(build_on_meta, BUILDS[name], options)
        ours = Way(prepare=plain, run=partial(mm.materialize, init="empty"))
        theirs = Way(prepare=plain, run=lambda model: model.to_empty(device="cpu"))
        contests.append(Contest(name=EMPTY, model=name, ways=(ours, theirs)))
    load, assign = partial(mm.materialize, init=path), partial(assign_file, path)
    for name in ("llama-1b-bf16-bare", "llama-1b-bf16"):
        ours = Way(prepare=partial(record, BUILDS[name], options), run=load)
        plain = partial(build_on_meta, BUILDS[name], options)
        theirs = Way(prepare=plain, run=assign)
        contests.append(Contest(name=LOAD, model=name, ways=(ours, theirs)))
        read = tuple(
            Way(prepare=way.prepare, run=partial(load_and_read, way.run))
            for way in (ours, theirs)
        )
        contests.append(Contest(name=READ, model=name, ways=read))
    return contests


def save_weights(path: Path, options: Options) -> Path:
    """Write the file that is loaded."""
    state = build_on_meta(BUILDS["llama-1b-bf16"], options).state_dict()
    save_file({k: torch.ones_like(t, device="cpu") for k, t in state.items()}, path)
    return path


def time_way(way: Way) -> Timing:
    """Run a way once; what it made is given back outside of the measured time."""
    gc.collect()
    torch.manual_seed(0)
    began = time.perf_counter()
    prepared = way.prepare()
    started, cpu_started = time.perf_counter(), time.process_time()
    result = way.run(prepared)
    ended, cpu_ended = time.perf_counter(), time.process_time()
    del result
    return Timing(
        prepared=started - began, wall=ended - started, cpu=cpu_ended - cpu_started
    )


def time_rounds(contest: Contest, n_rounds: int) -> list[tuple[Timing, Timing]]:
    """Return ours and theirs of each round; they take turns in being first."""
    rounds = []
    for n in range(n_rounds):
        ours, theirs = contest.ways
        if n % 2:
            second = time_way(theirs)
            rounds.append((time_way(ours), second))
        else:
            rounds.append((time_way(ours), time_way(theirs)))
    return rounds


def time_contest(contest: Contest, n_rounds: int) -> list[str]:
    """Measure a contest and return its row of the table of times."""
    rounds = time_rounds(contest, n_rounds)
    if max(timing.wall for pair in rounds for timing in pair) < QUICK_SECONDS:
        rounds = time_rounds(contest, n_rounds * N_QUICK)  # the first warmed up
    wall = median(ours.wall / theirs.wall for ours, theirs in rounds)
    with_recording = median((o.prepared + o.wall) / t.wall for o, t in rounds)
    is_replay = contest.name == REPLAY
    return [
        contest.name,
        contest.model,
        f"{1000 * median(theirs.wall for _, theirs in rounds):,.1f}",
        f"{1000 * median(ours.wall for ours, _ in rounds):,.1f}",
        f"{wall:.2f}",
        f"{median(ours.cpu / theirs.cpu for ours, theirs in rounds):.2f}",
        judge(wall),
        f"{1000 * median(o.prepared for o, _ in rounds):,.0f}" if is_replay else "",
        f"{with_recording:.2f}" if is_replay else "",
    ]


def read_status(field: str) -> int:
    """Return a number of bytes that the kernel knows of this process."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in text.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def watch(field: str, ended: threading.Event, values: list[int]) -> None:
    """Read a number of bytes again and again."""
    while not ended.wait(SAMPLING_SECONDS):
        values.append(read_status(field))


def measure_peak(index: int, way: int, files: tuple[Path, Path]) -> Peak:
    """Measure one way of one contest; call it in a fresh process.

    After a tiny model, so that the code of torch that it takes is in memory.
    """
    time_way(list_contests(files[0], TINY)[index].ways[way])
    measured = list_contests(files[1], {})[index].ways[way]
    torch.manual_seed(0)
    prepared = measured.prepare()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forgets VmHWM
    before, values, ended = (
        read_status("VmRSS"),
        [read_status("RssAnon")],
        threading.Event(),
    )
    watcher = threading.Thread(target=watch, args=("RssAnon", ended, values))
    watcher.start()
    result = measured.run(prepared)
    ended.set()
    watcher.join()
    values.append(read_status("RssAnon"))
    model = result if isinstance(result, nn.Module) else prepared
    return Peak(
        nbytes=sum(parameter.nbytes for parameter in model.parameters()),
        resident=read_status("VmHWM") - before,
        anonymous=max(values) - values[0],
        planned=getattr(result, "peak_nbytes", None),
    )


def weigh_contest(
    contest: Contest, index: int, files: tuple[Path, Path]
) -> list[list[str]]:
    """Measure the memory of both ways and return their rows of the table."""
    rows = []
    for way, name in enumerate(("materialize", "without")):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            peak = pool.submit(measure_peak, index, way, files).result()
        resident, anonymous = peak.resident / peak.nbytes, peak.anonymous / peak.nbytes
        planned = "" if peak.planned is None else f"{peak.planned / peak.nbytes:.3f}"
        cells = [contest.name, contest.model, name, f"{peak.nbytes / 2**20:,.0f}"]
        verdict = judge(resident) if name == "materialize" else ""
        numbers = [f"{resident:.3f}", f"{anonymous:.3f}", planned, verdict]
        rows.append(cells + numbers)
    return rows


def judge(ratio: float) -> str:
    """Say whether a ratio is as it should be."""
    return "met" if ratio <= GOAL else "missed"


def print_lines(*rows: Sequence[str]) -> None:
    """Print lines of a Markdown table as soon as they are known."""
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def print_times(contests: Iterable[Contest], n_rounds: int) -> None:
    """Measure and print the table of times."""
    print(
        "\nmilliseconds, and medians of the ratios within a round; recording comes "
        f"before replay. Goal: wall time at most {GOAL}\n"
    )
    names = ["done", "model", "without", "materialize", "wall", "CPU", "goal"]
    print_lines([*names, "recording", "wall with recording"])
    print_lines(["---", "---", *["--:"] * 4, "---", "--:", "--:"])
    for contest in contests:
        print_lines(time_contest(contest, n_rounds))


def print_memory(contests: Mapping[int, Contest], files: tuple[Path, Path]) -> None:
    """Measure and print the table of memory."""
    print(
        "\npeak growth of memory as a multiple of the parameters: resident, anonymous "
        f"(no mapped file), as planned. Goal: resident at most {GOAL}\n"
    )
    names = ["done", "model", "how", "parameters, MiB", "resident", "anonymous"]
    print_lines([*names, "planned", "goal"])
    print_lines([*["---"] * 3, *["--:"] * 4, "---"])
    for index, contest in contests.items():
        print_lines(*weigh_contest(contest, index, files))


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [REPLAY, EMPTY, LOAD, READ]
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", nargs="+", choices=names, default=names)
    parser.add_argument("--models", nargs="+", choices=BUILDS, default=list(BUILDS))
    return parser.parse_args()


def main() -> None:
    """Print the tables, row by row as they are measured."""
    options = parse_arguments()
    now = datetime.now(UTC)
    print(
        f"{now:%Y-%m-%d}, torch {torch.__version__}, {os.cpu_count()} CPU cores; "
        f"{options.rounds} rounds, {options.rounds * N_QUICK} where it is quick"
    )
    with tempfile.TemporaryDirectory() as folder:
        files = (Path(folder, "tiny.safetensors"), Path(folder, "full.safetensors"))
        save_weights(files[0], TINY)
        save_weights(files[1], {})
        contests = list_contests(files[1], {})
        chosen = {
            index: contest
            for index, contest in enumerate(contests)
            if contest.name in options.rows and contest.model in options.models
        }
        print_times(chosen.values(), options.rounds)
        print_memory(chosen, files)


if __name__ == "__main__":
    main()
