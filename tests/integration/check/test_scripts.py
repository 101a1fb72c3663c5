"""``meta-magic check`` of scripts: right ones, wrong ones, and odd ones."""

import json
import os
import socket
import sys
import time
from pathlib import Path

import pytest

WRONG = """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(784, 256), nn.Linear(200, 10))
y = model(torch.zeros(32, 784))
"""


def test_a_model_that_no_memory_holds_is_right(check):
    script = """\
import torch
layers = torch.nn.Sequential(*(torch.nn.Linear(65536, 65536) for _ in range(10)))
layers(torch.zeros(1, 65536)).sum().backward()
"""
    code, text = check("large.py", large=script)
    assert code == 0
    assert "large.py: right" in text
    # 10 x (65,536 x 65,536 weights and 65,536 biases), of 4 bytes each.
    assert "43.0 B parameters, 160.0 GiB" in text


def test_a_wrong_shape_is_an_error_that_is_explained(check):
    code, text = check("wrong.py", "--sarif", "log.sarif", wrong=WRONG)
    assert code == 1
    assert "line 5" in text
    assert "->      model = nn.Sequential(nn.Linear(784, 256), nn.Linear(256, 10))" in (
        text
    )
    (run,) = json.loads(Path("log.sarif").read_text("utf-8"))["runs"]
    errors = [result for result in run["results"] if result["level"] == "error"]
    place = errors[0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "wrong.py"
    assert place["region"]["startLine"] == 5


def test_an_error_in_another_file_is_reported_at_its_line_there(check):
    layers = "import torch\n\n\ndef mix(x):\n    return x @ x\n"
    main = "import torch\nfrom layers import mix\nmix(torch.zeros(2, 3))\n"
    code, text = check("main.py", "--json", main=main, layers=layers)
    found = json.loads(text)["checked"][0]["recordings"][0]["findings"][0]
    assert code == 1
    assert found["file"].endswith("layers.py")
    assert found["line"] == 5


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ("import os; os._exit(3)", 2, "ended its process at once, with exit code 3"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            2,
            "its process ended by SIGKILL, as the system ends one when memory is short",
        ),
        ("n = input('how many? ')", 2, "it asks for input, and here is none"),
        ("import sys; sys.exit(0)", 0, "right"),
    ],
)
def test_what_a_script_does_to_its_process_decides_the_exit_code(
    check, script, code, words
):
    given, text = check("odd.py", odd=script)
    assert given == code
    assert words in text


def test_a_script_that_trains_for_ever_is_reported_with_how_far_it_came(check_apart):
    script = """\
import torch
model = torch.nn.Linear(3, 3)
while True:
    model(torch.zeros(2, 3))
"""
    code, text = check_apart("forever.py", "--timeout", 12, forever=script)
    assert code == 2
    assert "it took more than 12 s (--timeout)" in text
    assert "model: Linear" in text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forked")
def test_a_rank_that_trains_for_ever_is_reported_with_how_far_it_came(check_apart):
    script = """\
import os, signal, time
import psutil, torch
model = torch.nn.Linear(3, 3)
model(torch.zeros(2, 3))
os.kill(psutil.Process().parent().ppid(), signal.SIGINT)  # as at the time limit
time.sleep(600)
"""
    code, text = check_apart("forever.py", "--world", 2, forever=script)
    assert code == 2
    assert "it took more than 300 s (--timeout)" in text
    assert "model: Linear" in text


@pytest.mark.skipif(sys.platform != "linux", reason="others refuse no memory")
@pytest.mark.parametrize(
    "line",
    ["torch.ones(3 * 2**30, device='cpu')", "bytearray(3 * 2**30)"],
)
def test_a_script_that_takes_memory_is_refused_it(check_apart, line):
    # Real memory: what is made on meta takes none.
    script = f"import torch\nwith torch.device('cpu'):\n    {line}\n"
    code, text = check_apart("big.py", "--memory", "2GB", big=script)
    assert code == 2
    assert "it needs more memory than 1.9 GiB (--memory)" in text


@pytest.mark.parametrize("size", ["much", "8", "0", "-5GB"])
def test_a_size_that_is_none_or_too_little_is_refused(check, size):
    with pytest.raises(SystemExit, match="2"):
        check("a.py", f"--memory={size}", a="")


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ("x = 1", 0, "note: torch was not called: nothing is checked"),
        (
            "from torch import nn\nm = nn.Linear(3, 4)",
            0,
            "note: no module was called: what it computes is not checked",
        ),
        (
            "import torch\nm = torch.nn.Linear(3, 4).cuda()\nm(torch.ones(2, 3))",
            1,
            "error: aten.addmm.default took a tensor without a named device",
        ),
    ],
)
def test_what_is_not_checked_and_what_would_fail_elsewhere_is_said(
    check, script, code, words
):
    found, text = check("a.py", a=script)
    assert (found, words in text) == (code, True)


def test_a_script_that_lets_nobody_end_it_is_ended(check, monkeypatch):
    monkeypatch.setattr("meta_magic.check.records.GRACE", 0.5)
    script = """\
import time
while True:
    try:
        time.sleep(60)
    except BaseException:
        pass
"""
    code, text = check("stubborn.py", "--timeout", 4, stubborn=script)
    assert code == 2
    assert "it took more than 4 s (--timeout)" in text


def test_arguments_after_two_dashes_are_the_scripts(check):
    script = """\
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("--json", action="store_true")
parser.add_argument("--width", type=int, required=True)
assert parser.parse_args().width == 7 and "--json" in sys.argv[1:]
"""
    code, text = check("args.py", args=script)
    assert code == 2
    assert "the following arguments are required: --width" in text
    assert check("args.py", "--", "--json", "--width", 7)[0] == 0


def test_a_script_runs_as_main_with_its_folder_in_front(check, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "beside.py").write_text("n = 3")
    (tmp_path / "sub" / "main.py").write_text(
        "import sys, beside, pickle\n"
        "class Own: pass\n"
        "assert __name__ == '__main__' and __file__.endswith('main.py')\n"
        "assert sys.modules['__main__'].Own is Own and beside.n == 3\n"
        "assert isinstance(pickle.loads(pickle.dumps(Own())), Own)\n"
    )
    code, text = check("sub/main.py")
    assert code == 0, text


def test_files_are_written_and_processes_started_as_without_us(check, tmp_path):
    script = """\
import subprocess, sys
ran = subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True)
open("out.txt", "wb").write(ran.stdout)
"""
    code, _ = check("writes.py", writes=script)
    assert code == 0
    assert (tmp_path / "out.txt").read_text().strip() == "42"


def is_alive(pid):
    """Whether a process is there that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_processes_that_a_script_leaves_are_ended_with_it(check_apart, tmp_path):
    script = """\
import subprocess, sys
code = "import time; time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code])
open("pid.txt", "w").write(str(child.pid))
"""
    code, _ = check_apart("leaves.py", leaves=script)
    pid = int((tmp_path / "pid.txt").read_text())
    assert code == 0
    end = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < end:  # the kernel takes its time
        time.sleep(0.05)
    assert not is_alive(pid)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("open('out.txt', 'w')", "it writes the file 'out.txt' (--sandbox)"),
        (
            "try:\n    open('out.txt', 'w')\nexcept BaseException:\n    pass",
            "it writes the file 'out.txt' (--sandbox)",
        ),
        ("import subprocess; subprocess.run(['ls'])", "it starts a process"),
        ("input()", "it asks for input"),
    ],
)
def test_a_sandbox_refuses(check, tmp_path, script, words):
    code, text = check("side.py", "--sandbox", side=script)
    assert code == 2
    assert words in text
    assert not (tmp_path / "out.txt").exists()


def test_a_sandbox_refuses_sockets(check):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"import socket; socket.create_connection(('127.0.0.1', {port}))"
        assert check("net.py", net=script)[0] == 0
        code, text = check("net.py", "--sandbox", net=script)
    assert code == 2
    assert "it uses the network (--sandbox)" in text


def test_a_sandbox_lets_a_program_compute_and_an_error_be_explained(check):
    code, text = check("wrong.py", "--sandbox", wrong=WRONG)
    assert code == 1
    assert "nn.Linear(256, 10)" in text


STEP = """
import torch
from torch import nn

WIDTH = 12

def step(n_rows, classes=2):
    model = nn.Linear(WIDTH, classes)
    return model(torch.zeros(n_rows, 11)).sum()
"""


def test_an_error_in_a_function_is_traced_and_repaired(check):
    code, text = check("steps:step", "--args", "[3]", steps=STEP)
    assert code == 1
    assert "line 9: model(torch.zeros(n_rows, 11))" in text
    assert "why 12 = WIDTH, written (line 5)" in text
    assert "used as it is, not made again: classes, n_rows" in text
    assert "line 8  model = nn.Linear(WIDTH, classes)" in text
