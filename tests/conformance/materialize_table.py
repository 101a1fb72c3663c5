"""Print the README's table of modules that materialize as the CPU builds them.

Run ``python -m tests.conformance.materialize_table``; it takes about five minutes.
"""

import datetime as dt
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from tests.conformance import architectures, torch_modules
from tests.conformance.constructions import CONSTRUCTIONS
from tests.conformance.exactness import Build, build_both, compute_both


@dataclass
class Group:
    """Cases of one kind.

    Attributes:
        title: What they are.
        n_cases: How many were compared.
        unequal: Name and reason of those that are not equal.
    """

    title: str
    n_cases: int = 0
    unequal: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, compare: Callable[[], list[str]]) -> None:
        """Count a case."""
        self.n_cases += 1
        try:
            found = compare()
        except Exception as error:
            found = [f"{type(error).__name__}: {error}".splitlines()[0]]
        if found:
            self.unequal[name] = found[0]

    def __str__(self) -> str:
        n_equal = self.n_cases - len(self.unequal)
        return f"| {self.title} | {self.n_cases:,} | {n_equal:,} |"


def compare_builds(title: str, builds: dict[str, Build]) -> Group:
    """Return how many of some constructions are equal."""
    group = Group(title)
    for name, build in builds.items():
        group.add(name, lambda build=build: build_both(build)[2])
    return group


def compare_architectures() -> Iterator[Group]:
    """Yield how many architectures are equal, and how many compute the same."""
    built = Group("architectures of transformers at tiny sizes")
    computed = Group("outputs of those for which a simple input is known")
    for name in filter(architectures.is_known, architectures.ARCHITECTURES):
        both = []
        build = architectures.make_build(name)

        def compare(build: Build = build, both: list = both) -> list[str]:
            direct, module, found = build_both(build)
            both.extend([module.eval(), direct.eval()])
            return found

        built.add(name, compare)
        inputs = architectures.find_inputs(both[1]) if both else None
        if inputs is not None:
            computed.add(name, lambda b=both, i=inputs: compute_both(*b, i))
    yield from (built, computed)


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = torch_modules.MODULES
    n_modules = sum(map(torch_modules.count_samples, names))
    groups = [
        compare_builds(
            f"classes of torch's module database ({n_modules:,} modules)",
            {name: torch_modules.make_build(name) for name in names},
        ),
        compare_builds("special constructions", CONSTRUCTIONS),
        *compare_architectures(),
    ]
    print(f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d}, torch {torch.__version__}")
    print("\n| what is built | cases | equal to the bit |\n|---|---:|---:|")
    print(*groups, sep="\n")
    print("\nNot equal:\n")
    for group in groups:
        for name, reason in group.unequal.items():
            print(f"- {name}: {reason}")


if __name__ == "__main__":
    main()
