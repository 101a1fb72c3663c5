"""What a person sees who has not installed torch."""

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["torch"] = None  # what an import of a package that is not there meets
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("%load_ext meta_magic").raise_error()
shell.run_cell("%%meta\\nx = 1")
print("ran:", "x" in shell.user_ns)
"""


def test_a_cell_says_in_one_sentence_how_to_install_torch():
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    message = "UsageError: %%meta needs PyTorch, which is not installed: run `pip "
    assert run.stderr.strip() == f"{message}install torch`"
    assert run.stdout.strip() == "ran: False"
