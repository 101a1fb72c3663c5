"""Run a script as ``python script.py`` does, under a recording."""

import sys
from collections.abc import Iterator
from importlib.util import decode_source
from pathlib import Path
from types import CodeType, ModuleType
from typing import cast

from meta_magic.check.checked_block import CheckedBlock, close_doors
from meta_magic.check.judging import Judge, judge_unread
from meta_magic.check.verdicts import Part, Request

__all__ = ["run_script"]


def run_script(request: Request) -> Iterator[Part]:
    """Run a script; yield the one part that it has.

    Raises:
        CheckError: An option is none.
    """
    path = cast("Path", request.subject.path)
    source = path.read_bytes()
    try:
        code: CodeType = compile(source, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        yield judge_unread(error, str(path))
        return
    main = enter_main(path, request.argv)
    text = decode_source(source)
    block = CheckedBlock(request, str(path), vars(main), text)
    refused = close_doors(request)
    trace = block.run(lambda: exec(code, vars(main)), code)  # noqa: S102  what was asked for
    yield Judge(request, refused).judge(trace, block.error)


def enter_main(path: Path, argv: tuple[str, ...]) -> ModuleType:
    """Make the module that a script runs as, and have Python set up for it."""
    main = ModuleType("__main__")
    vars(main).update(__file__=str(path), __cached__=None, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    sys.argv = [str(path), *argv]
    sys.path.insert(0, str(path.parent))
    return main
