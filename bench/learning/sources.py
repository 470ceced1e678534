"""A digest of the code that a simulated training runs through, so that a kept run is used for as long as it is true.

Imports are followed, from what is simulated and from the modules that a strategy is written in. The simulation knows
strategies by name alone: a change of one leaves the runs of the others. Comments and docstrings do not count.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOTS = ("outpace.simulation.training", "bench.learning.tasks")
OWN = ("outpace.", "bench.learning.")
BY_NAME = ("outpace.strategies",)  #: it imports every strategy there is


@cache
def code_of(kind: type) -> str:
    """Of the simulation and of this strategy."""
    return digest(*(_tree(module) for module in modules_of(kind)))


@cache
def modules_of(kind: type) -> tuple[str, ...]:
    """What is imported to train with this strategy in simulated time, as far as it is ours."""
    found: set[str] = set()
    to_read = [*ROOTS, *(base.__module__ for base in kind.__mro__)]
    while to_read:
        module = to_read.pop()
        if module.startswith(OWN) and module not in found and module not in BY_NAME:
            found.add(module)
            to_read += _imported(module)
    return tuple(sorted(found))


@cache
def _imported(module: str) -> tuple[str, ...]:
    return tuple(_imports(_parsed(module)))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(OWN):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names if _is_module(node.module, alias.name))


def _is_module(package: str | None, name: str) -> bool:
    return _file(str(package)).name == "__init__.py" and find_spec(f"{package}.{name}") is not None


def _file(module: str) -> Path:
    loaded = sys.modules.get(module)
    origin = getattr(loaded, "__file__", None) or getattr(find_spec(module), "origin", None)
    assert origin is not None, module
    return Path(origin)


@cache
def _tree(module: str) -> str:
    return f"{module} {ast.dump(_without_docstrings(_parsed(module)))}"


def _without_docstrings(tree: ast.Module) -> ast.Module:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return tree


def _parsed(module: str) -> ast.Module:
    return ast.parse(_file(module).read_text(encoding="utf-8"))


def digest(*parts: str) -> str:
    """A short hash of texts."""
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()
