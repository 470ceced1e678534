"""The JSON of all sections. Owns reading, checking and writing it: figures of one page are of one machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

Results = dict[str, Any]


def nothing() -> Results:
    """Before anything was measured."""
    return {"machine": None, "sections": {}}


def read(path: Path) -> Results:
    """What was measured before."""
    if not path.exists():
        return nothing()
    results: Results = json.loads(path.read_text(encoding="utf-8"))
    return results


def difference(results: Results, machine: dict[str, Any]) -> str | None:
    """In words, why figures of this machine cannot stand beside those that are known."""
    known = results["machine"]
    if known is None or known == machine:
        return None
    return ", ".join(
        f"{name} {known.get(name)} there, {here} here" for name, here in machine.items() if known.get(name) != here
    )


def write(path: Path, results: Results) -> None:
    """At once: whoever is interrupted leaves the old file or the new one."""
    beside = path.with_suffix(".json.new")
    beside.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, path)
