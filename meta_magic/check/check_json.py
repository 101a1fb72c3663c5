"""Verdicts as JSON, for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from meta_magic.check.verdicts import Part, Verdict, pick_exit_code

__all__ = ["render_json"]


def render_json(verdicts: Sequence[Verdict]) -> str:
    """Return verdicts as one JSON object: ``exit_code`` and ``checked``."""
    content = {
        "exit_code": pick_exit_code(verdicts),
        "checked": [
            {
                "name": verdict.name,
                "outcome": verdict.outcome,
                "seconds": round(verdict.seconds, 3),
                "recordings": [describe_part(part) for part in verdict.parts],
                "output": verdict.output,
            }
            for verdict in verdicts
        ],
    }
    return json.dumps(content, indent=1)


def describe_part(part: Part) -> dict[str, Any]:
    """Return a recording as plain data, without its report and its modules."""
    fields = asdict(part)
    del fields["page"], fields["modules"]
    return {**fields, "findings": [asdict(found) for found in part.findings]}
