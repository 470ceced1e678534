"""The package's description for an index: the README without what only works inside the repository."""

import re
from pathlib import Path

from setuptools import setup


def for_index(readme: str) -> str:
    """Pictures of the repository are left out with their captions; links to its files become words and a name."""
    text = re.sub(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n+(?:\*.*\*\n+)?", "", readme)
    return re.sub(r"\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)[^)]*\)", _named, text)


def _named(link: re.Match[str]) -> str:
    words, file = link[1], link[2]
    return words if words == file else f"{words} (`{file}`)"


if __name__ == "__main__":
    readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    setup(long_description=for_index(readme), long_description_content_type="text/markdown")
