"""Expressions and statements of noted lines, written as a table says.

``target = r + q(s).max(1).values`` becomes ``target = (r + ...).detach()``. Most notes
need no more than a row of :data:`REWRITES`; read :func:`rewrite` first.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final, TypeAlias

from meta_magic.explain.edits.program_text import (
    ATOMS,
    Called,
    Edit,
    SourceText,
    Spot,
    Stretch,
)
from meta_magic.trace.notes import Note

Part: TypeAlias = "str | ast.expr | list[ast.expr | ast.keyword]"
"""What a letter of a pattern stands for: a name after a dot, an expression, or the rest
of a call's arguments."""


class NotedLines:
    """The lines of a note in a program."""

    def __init__(self, program: SourceText, note: Note) -> None:
        self.program, self.note = program, note
        first = () if note.line is None else program.list_lines(note.line)
        others = chain.from_iterable(map(program.list_lines, note.lines))
        self._lines = {*first, *others}

    def find_calls(self, *names: str) -> list[Called]:
        """Return the calls of its lines, of functions with these names; () for all."""
        return [
            called
            for called in self.program.calls
            if called.node.lineno in self._lines and (not names or called.name in names)
        ]

    def find(self, *kinds: type[ast.AST]) -> list[ast.AST]:
        """Return the nodes of its lines, outer ones first."""
        found = (node for node in self.program.nodes if isinstance(node, kinds))
        return [node for node in found if getattr(node, "lineno", 0) in self._lines]

    def list_names(self) -> list[str]:
        """Return the names that its other lines bind."""
        bound = self.find(ast.Assign)
        others = [node for node in bound if node.lineno != self.note.line]  # type: ignore[attr-defined]
        targets = [target for node in others for target in node.targets]  # type: ignore[attr-defined]
        return [target.id for target in targets if isinstance(target, ast.Name)]


def rewrite(lines: NotedLines) -> Iterator[Edit]:
    """Write an expression or statement of its lines as ``REWRITES`` says."""
    program, text = lines.program, lines.note.text
    said = text.rpartition("write ")[2].replace(" and ", "; ")
    fixed = {"N": (text.rpartition(" ")[2], False), "W": (said, False)}
    for old, new, *first in REWRITES[lines.note.kind]:
        (statement,) = ast.parse(old).body
        pattern: ast.AST = statement
        if isinstance(statement, ast.Expr):
            pattern = statement.value
        names = lines.list_names() if re.search(r"\bL\b", new) else [""]
        for node in lines.find(type(pattern)):
            found: dict[str, Part] = {}
            if isinstance(node, (ast.expr, ast.stmt)) and is_match(
                pattern, node, found
            ):
                parts = {key: read_part(program, part) for key, part in found.items()}
                for name in names:
                    letters = {"L": (name, False)} | fixed | parts
                    before = "".join(fill(one, letters) for one in first)
                    cost = int(bool(first))
                    for edit in program.replace(node, fill(new, letters), cost):
                        yield from put_first(program, node, edit, before)


def is_match(pattern: object, node: object, found: dict[str, Part]) -> bool:
    """Whether a node is as a pattern, and keep what its letters stand for."""
    if isinstance(pattern, ast.Name) and LETTER.fullmatch(pattern.id):
        found[pattern.id] = node  # type: ignore[assignment]  # an expression, as it is
        return pattern.id != "M" or isinstance(node, ast.Call)
    if isinstance(pattern, str) and isinstance(node, str) and LETTER.fullmatch(pattern):
        found[pattern] = node
        return True
    if isinstance(pattern, ast.Call) and isinstance(node, ast.Call):
        given, rest = pattern.args[:-1], pattern.args[-1:]
        is_open = bool(rest) and isinstance(rest[0], ast.Starred)
        if is_open and len(node.args) >= len(given):
            found["Z"] = [*node.args[len(given) :], *node.keywords]
            begun = zip(given, node.args, strict=False)
            pairs = [(pattern.func, node.func), *begun]
            return all(is_match(*pair, found) for pair in pairs)
    if isinstance(pattern, list) and isinstance(node, list):
        pairs = [*zip(pattern, node, strict=False)]
        return len(pattern) == len(node) and all(is_match(*p, found) for p in pairs)
    if not isinstance(pattern, ast.AST):
        return pattern == node
    fields = (one for one in ast.iter_fields(pattern) if one[0] not in {"ctx", "kind"})
    return type(pattern) is type(node) and all(
        is_match(value, getattr(node, name), found) for name, value in fields
    )


def read_part(program: SourceText, part: Part) -> tuple[str, bool]:
    """Return the text of what a letter stands for, and whether it may need brackets."""
    if isinstance(part, str):
        return part, False
    if isinstance(part, list):
        return ", ".join(map(program.read, part)), False
    return program.read(part), not isinstance(part, (*ATOMS, ast.Constant))


def fill(template: str, letters: Mapping[str, tuple[str, bool]]) -> str:
    """Return a template with a text for each letter, in brackets where it may need."""

    def put(match: re.Match[str]) -> str:
        text, is_wide = letters.get(match[0], (match[0], False))
        before, after = template[: match.start()], template[match.end() :]
        is_alone = BEGUN.search(before) and after[:1] in {"", ")", "]", ","}
        return f"({text})" if is_wide and not is_alone else text

    return LETTER.sub(put, template)


def put_first(
    program: SourceText, node: Spot, edit: Edit, first: str
) -> Iterator[Edit]:
    """Yield an edit with a statement before the loop around a node, and an import."""
    stretches, at = edit.stretches, program.find_statement(node)
    if at is None:
        return
    if "copy." in stretches[0].text and "copy" not in program.imported:
        start = at.lineno, at.col_offset, at.col_offset
        stretches = (*stretches, Stretch(*start, "import copy; "))
    if first:
        loops = (one for one in program.walk_up(node) if isinstance(one, ast.For))
        loop = next(loops, at)
        simple = program.find(ast.Assign, ast.Expr, ast.Import, ast.ImportFrom)
        before = [one for one in simple if (one.end_lineno or 0) < loop.lineno]
        beside = [one for one in before if one.col_offset == loop.col_offset]
        if loop is at or not beside:
            return
        last = max(beside, key=lambda one: one.lineno)
        end = last.end_lineno or 0, last.end_col_offset or 0
        stretches = (*stretches, Stretch(*end, end[1], f"; {first}"))
    yield replace(edit, stretches=stretches)


def list_bound(program: SourceText) -> Iterator[tuple[str, str]]:
    """Yield the names that a program binds, and the text of each value."""
    for node in program.find(ast.Assign):
        pairs = [(node.targets[0], node.value)]
        if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = [*zip(node.targets[0].elts, node.value.elts, strict=False)]
        for target, value in pairs:
            yield ast.unparse(target), program.read(value)


LETTER: Final = re.compile(r"\b[A-Z]\b")
BEGUN: Final = re.compile(r"(^|[(\[]|, | = )$")
"""The text before an expression that needs no brackets."""

REWRITES: Final[Mapping[str, Sequence[tuple[str, ...]]]] = {
    "raw scores": (
        ("X.nll_loss(A, B)", "X.cross_entropy(A, B)"),
        ("X.NLLLoss()", "X.CrossEntropyLoss()"),
    ),
    "detached": (("A.detach()", "A"), ("A.item()", "A")),
    "sum beside mean": (("X.sum(A)", "X.mean(A)"), ("A.sum()", "A.mean()")),
    "swapped": (
        ("X.binary_cross_entropy(A, B)", "X.binary_cross_entropy(B, A)"),
        ("X(A, B)", "X(B, A)"),
    ),
    "class dimension": (
        (
            "X.cross_entropy(A, B)",
            "X.cross_entropy(A.transpose(1, -1), B.transpose(1, -1))",
        ),
    ),
    "crossed rows": (
        ("A.reshape(B)", "A.transpose(0, 1).reshape(B)"),
        ("A.view(B)", "A.transpose(0, 1).reshape(B)"),
        ("A.flatten()", "A.transpose(0, 1).flatten()"),
        ("torch.cat(A)", "torch.stack(A, 1).flatten(0, 1)"),
    ),
    "merged batch": (
        ("A.view(-1, B)", "A.flatten(1)"),
        ("A.reshape(-1, B)", "A.flatten(1)"),
    ),
    "inverted padding": (("A != B", "A == B"),),
    "causal mask": (
        ("A * B", 'A.masked_fill(B == 0, float("-inf"))'),
        ("A.masked_fill(B, C)", "A.masked_fill(~B, C)"),
    ),
    "scale": (
        ("X.softmax(A, *Z) / B", "X.softmax(A / B, Z)"),
        ("A.softmax(*Z) / B", "(A / B).softmax(Z)"),
        ("A / B", "A / N ** 0.5"),
        ("A * B", "A / N ** 0.5"),
    ),
    "mixed": (("torch.cat(A, dim=0).B(*Z)", "torch.cat(A, dim=1).B(Z)"),),
    "mixed samples": (
        ("A[:B.size(0)]", "A[:B.size(1)].transpose(0, 1)"),
        ("A[:B.shape[0]]", "A[:B.shape[1]].transpose(0, 1)"),
    ),
    "self copy": (
        ("A.state_dict()", "copy.deepcopy(A.state_dict())"),
        ("A.detach()", "A.detach().clone()"),
    ),
    "one layer": (
        ("[M] * A", "[M for _ in range(A)]"),
        ("[A] * B", "[copy.deepcopy(A) for _ in range(B)]"),
        (
            "[A, B] * C",
            "[copy.deepcopy(one) for _ in range(C) for one in (A, B)]",
        ),
    ),
    "size one": (("torch.sigmoid(A).argmax(1)", "(A > 0).squeeze(1)"),),
    "not called": (("A.B", "W"),),
    "frozen attribute": (("A.B = C", "W"),),
    "second name": (("A = B", "A = W"),),
    "other step": (("A.step()", "W"),),
    "lost update": (("A = B", "A.copy_(B)"), ("A = B", "A.data.copy_(B)")),
    "unused result": (("A.B(*Z)", "A = A.B(Z)"), ("X.B(A, *Z)", "A = X.B(A, Z)")),
    "dropped loss": (("A = B", "A = A + B"), ("A = B", "A = A + B", "A = 0")),
    "lost state": (
        ("A = B(C)", "A = B(C, A)"),
        ("A, B = C(D)", "A, B = C(D, (A, B))"),
        ("A = B(C)", "A = B(C, A)", "A = None"),
    ),
    "cut mask": (
        (
            "X(A, B, C, is_causal=D)",
            "X(A, B, C, attn_mask=torch.ones(A.size(-2), B.size(-2)).bool()"  # noqa: ISC004
            ".tril(B.size(-2) - A.size(-2)))",
        ),
    ),
    "own neighbor": (("X(A, B)", 'X(A.fill_diagonal_(float("-inf")), B)'),),
    "other noise": (("X(A, B)", "X(A, L)"),),
    "moving target": (("A = B", "A = B.detach()"), ("X(A, B)", "X(A, B.detach())")),
    "zero difference": (("A - B", "A - B.detach()"), ("A / B", "A / B.detach()")),
    "copied labels": (
        ("X(A[:, :-1], labels=B)", "X(A, labels=A)"),
        ("X(input_ids=A[:, :-1], labels=B)", "X(input_ids=A, labels=A)"),
        (
            "X(A.B(-1, C), D.E(-1))",
            "X(A[:, :-1].reshape(-1, C), D[:, 1:].reshape(-1))",
        ),
        (
            "X(A.flatten(0, 1), B.flatten())",
            "X(A[:, :-1].flatten(0, 1), B[:, 1:].flatten())",
        ),
        (
            "X(A.transpose(1, 2), B)",
            "X(A[:, :-1].transpose(1, 2), B[:, 1:])",
        ),
    ),
}
"""Expressions and statements and what is written for them, by the kind of note.

A capital letter is an expression or a name after a dot, ``M`` a call, ``*Z`` the rest
of its arguments, ``N`` the last word of the note, ``W`` what it says to write, and
``L`` a name that another one of its lines binds. A third text goes before the loop.
"""
