"""Compare the memory of programs with that of a real CPU run, and print a table.

``python -m tests.conformance.memory [NAME ...]`` runs all, or those that are named.
``--purposes`` compares what their storages are for, too.
"""

import argparse
import sys
import warnings

import torch

from tests.conformance.memory_models import MODELS
from tests.conformance.memory_runs import compare_purposes, compare_timelines
from tests.conformance.memory_scripts import SCRIPTS
from tests.conformance.memory_traps import TRAPS

PROGRAMS = {program.__name__: program for program in (*MODELS, *TRAPS, *SCRIPTS)}


def format_timelines(name, found):
    """Return a row: operators, those aligned, those equal, and both peaks."""
    more = found.peak_nbytes / found.real_nbytes - 1
    peak = "same" if found.has_peak else f"{more:+.2%}"
    return (
        f"| {name.replace('_', ' ')} | {found.n_real:,} | {found.n_aligned:,} "
        f"| {found.n_equal:,} | {found.real_nbytes:,} | {peak} |"
    )


def format_purposes(name, found):
    """Return a row: storages, those aligned, those called as torch does, the others."""
    wrong = [f"{n} {a} as {b}" for (a, b), n in found.wrong.items()]
    n_right = found.n_aligned - sum(found.wrong.values())
    return (
        f"| {name.replace('_', ' ')} | {found.n_storages:,} | {found.n_aligned:,} "
        f"| {n_right:,} | {', '.join(wrong)} |"
    )


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*PROGRAMS, []], default=[])
    parser.add_argument("--purposes", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    names = options.names or [*PROGRAMS]
    n_equal = n_right = 0
    for name in names:
        found = compare_timelines(PROGRAMS[name])
        n_equal += found.are_equal
        print(format_timelines(name, found), flush=True)
    print(f"{n_equal} of {len(names)} the same at every operator")
    for name in names if options.purposes else ():
        purposes = compare_purposes(PROGRAMS[name])
        n_right += not purposes.wrong and purposes.n_aligned == purposes.n_storages
        print(format_purposes(name, purposes), flush=True)
    if options.purposes:
        print(f"{n_right} of {len(names)} called as torch does")


if __name__ == "__main__":
    main(sys.argv[1:])
