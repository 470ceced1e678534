"""Docstrings as Markdown: options that a docstring lists, and sessions of its examples, each in lines of their own.

mkdocstrings loads this. Owns the shape of docstrings on the site; their words stay as they are in the code.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_OPTION = re.compile(r"(?P<names>[a-z_]\w*(?:, [a-z_]\w*)*): (?P<about>.*)")


class Docstrings(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = shaped(obj.docstring.value)


def shaped(text: str) -> str:
    """
    >>> print(shaped("Adds.\\n\\nleft, right: what is\\n    added.\\n\\n>>> 1 + 1\\n2"))
    Adds.
    <BLANKLINE>
    * `left`, `right`: what is
        added.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    return "\n\n".join(_paragraph(part) for part in text.split("\n\n"))


def _paragraph(part: str) -> str:
    if part.startswith(">>> "):
        return f"```pycon\n{part}\n```"
    lines = part.splitlines()
    if all(line.startswith(" ") or _OPTION.fullmatch(line) for line in lines):
        return "\n".join(map(_item, lines))
    return part


def _item(line: str) -> str:
    found = _OPTION.fullmatch(line)
    if found is None:
        return line
    names = ", ".join(f"`{name}`" for name in found["names"].split(", "))
    return f"* {names}: {found['about']}"
