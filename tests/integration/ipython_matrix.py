"""Run the kernel tests on old and new IPython.

``python tests/integration/ipython_matrix.py`` prints a table, and fails if a test did.
Each version is installed into a folder of its own, before the environment's packages on
the path, so that torch is taken from there.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
TESTS = sorted(map(str, Path(__file__).parent.glob("magic/test_kernel*.py")))
VERSIONS = {
    "IPython 7.34, ipykernel 6.17": ("ipython==7.34.0", "ipykernel==6.17.1"),
    "IPython 8.39, ipykernel 6.29": ("ipython==8.39.0", "ipykernel==6.29.5"),
    "as installed": (),
}


def install(packages: tuple[str, ...], directory: str) -> None:
    """Install packages, and what they need, into a folder."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", directory]
    subprocess.run([*pip, *packages], check=True)


def run_tests(directory: str, arguments: list[str]) -> tuple[int, str]:
    """Run the kernel tests with that folder first on the path."""
    path = os.pathsep.join([directory, str(REPOSITORY)])
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=short", *TESTS, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return run.returncode, run.stdout


def main(arguments: list[str]) -> int:
    """Test every version; ``arguments`` go to pytest."""
    rows, worst = [], 0
    for name, packages in VERSIONS.items():
        with tempfile.TemporaryDirectory() as directory:
            if packages:
                install(packages, directory)
            code, output = run_tests(directory, arguments)
        worst = max(worst, code)
        rows.append((name, output.strip().splitlines()[-1]))
        print(
            "\n".join(re.findall(r"^(?:FAILED|ERROR|SKIPPED).*", output, re.MULTILINE))
        )
    print("\n".join(f"{name:30} {result}" for name, result in rows))
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
