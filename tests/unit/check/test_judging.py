import pytest

from meta_magic.check.judging import find_outside_reason
from meta_magic.check.records import Request, Subject
from meta_magic.errors import MissingValueError

LACKING = "it needs what is not here:"
REQUEST = Request(
    subject=Subject(name="a.py", kind="script"), seconds=7, nbytes=3 * 2**30
)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MissingValueError("no value"), "no value"),
        (KeyboardInterrupt(), "it took more than 7 s (--timeout)"),
        (EOFError("no line"), "it asks for input, and here is none: no line"),
        (FileNotFoundError("no file"), f"{LACKING} FileNotFoundError: no file"),
        (
            ModuleNotFoundError("No module named 'apples'", name="apples.pears"),
            "it needs 'apples', which is not installed",
        ),
        (RuntimeError("no NVIDIA driver"), f"{LACKING} RuntimeError: no NVIDIA driver"),
        (NotImplementedError("on Meta"), f"{LACKING} NotImplementedError: on Meta"),
        (
            MemoryError("no room"),
            "it needs more memory than 3.0 GiB (--memory): MemoryError: no room",
        ),
        (
            SystemExit(2),
            "it does not take its arguments (exit code 2); give others after --",
        ),
    ],
)
def test_what_is_not_the_programs_fault_has_a_reason(error, reason):
    assert find_outside_reason(error, REQUEST) == reason


def test_a_module_without_a_name_lacks_what_its_cause_says():
    error = ModuleNotFoundError("Could not import module 'Apple'")
    assert find_outside_reason(error, REQUEST) is None
    error.__cause__ = ModuleNotFoundError("No module named 'pears'", name="pears")
    assert "it needs 'pears'" in find_outside_reason(error, REQUEST)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        ModuleNotFoundError("No module named 'torch.apples'", name="torch.apples"),
        ImportError("cannot import name 'apples' from 'torch'", name="torch"),
        NotImplementedError(),
        IndexError("list index out of range"),
        SystemExit(1),
        SystemExit("no"),
    ],
)
def test_an_error_of_the_program_has_none(error):
    assert find_outside_reason(error, REQUEST) is None
