"""How long a slider's answer takes in the kernel, and a sweep.

``python -m tests.benchmarks.explore`` prints a Markdown table. The browser's part is
not in it: ``tests.benchmarks.report`` has what it takes to draw a report.
"""

import os
import time
from statistics import median, quantiles

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import meta_magic as mm
from meta_magic.view.payload import pack
from meta_magic.view.sliders import Designs

WIDTHS = range(384, 1537, 96)


def record_forward():
    with mm.record(params={"width": WIDTHS}) as trace:
        width = 768
        model = GPT2LMHeadModel(GPT2Config(n_embd=width))
        model(torch.zeros(1, 128, dtype=torch.long))
    return trace


def record_step():
    with mm.record(params={"width": WIDTHS}) as trace:
        width = 768
        model = GPT2LMHeadModel(GPT2Config(n_embd=width))
        optimizer = torch.optim.AdamW(model.parameters())
        tokens = torch.zeros(1, 128, dtype=torch.long)
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
    return trace


def record_llama():
    with mm.record(params={"width": range(4096, 10241, 512)}) as trace:
        width = 8192
        config = LlamaConfig(
            hidden_size=width,
            intermediate_size=28672,
            num_hidden_layers=80,
            num_attention_heads=64,
            num_key_value_heads=8,
            vocab_size=128256,
        )
        LlamaForCausalLM(config)(torch.zeros(1, 2048, dtype=torch.long))
    return trace


def time_moves(trace, pause):
    """Return the seconds of each move of the slider, and processor time of all.

    The slider goes from one value to the next. Without a pause the next value is
    recorded while the kernel is asked for this one; with one, before it is asked for.
    """
    (slider,) = trace.rerun.options.sliders
    pack(trace)  # as the report that has the slider
    designs = Designs()
    pinned = {slider.name: 8192 if slider.values[-1] > 8000 else 768}
    times, before = [], os.times()
    for at, value in enumerate(slider.values):
        started = time.perf_counter()
        following = [] if pause is None else slider.values[at + 1 : at + 3]
        ahead = [{slider.name: one} for one in following]
        asked = {"sizes": {slider.name: value}, "pinned": pinned, "with": ahead}
        answer = designs.answer(trace, asked)
        times.append(time.perf_counter() - started)
        assert "error" not in answer, answer
        time.sleep(pause or 0)
    del designs  # ends its processes
    spent = sum(os.times()[:4]) - sum(before[:4])
    return times, spent / len(times)


PAUSE_BY_KIND = {"alone": None, "without a pause": 0, "1 s apart": 1}


def main():
    """Print the table."""
    print("| moves of a slider | median, ms | 95 %, ms | processor time, ms |")
    print("|---|--:|--:|--:|")
    cells = {
        "GPT-2 forward": record_forward,
        "GPT-2 training step": record_step,
        "Llama-3-70B forward": record_llama,
    }
    for name, build in cells.items():
        build()
        for kind, pause in PAUSE_BY_KIND.items():
            times, spent = time_moves(build(), pause)
            numbers = median(times), quantiles(times, n=20)[-1], spent
            columns = " | ".join(f"{1000 * one:.0f}" for one in numbers)
            print(f"| {name}, {kind} | {columns} |")
    trace = record_forward()
    started, before = time.perf_counter(), os.times()
    table = trace.sweep(width=range(192, 192 + 12 * 200, 12))
    seconds = time.perf_counter() - started
    spent = sum(os.times()[:4]) - sum(before[:4])
    assert table["error"].isna().all()
    print(f"\n{len(table)} designs of GPT-2: {seconds:.1f} s, processor {spent:.1f} s")


if __name__ == "__main__":
    main()
