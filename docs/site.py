"""What the site has beside the pages in docs/. Owns the pages that are made from the code, and links that leave docs/.

The first page is the README, so that nothing is said twice. Examples are pages of their own. The reference is made from
docstrings, arguments and parsers. A link to another file of the repository, which a site cannot follow, is shown as the
file's name.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Sections of the navigation that are left empty list what a directory has."""
    filled = {
        "Examples": [f"examples/{path.name}.md" for path in _examples()],
        "Decisions": ["decisions/index.md", *(f"decisions/{path.name}" for path in _decisions())],
    }

    def fill(items: list[Any]) -> None:
        for section in (item for item in items if isinstance(item, dict)):
            for title, inside in section.items():
                section[title] = filled.get(title, inside)
                if isinstance(inside, list):
                    fill(inside)

    fill(config.nav or [])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for where, content in _made_pages():
        files.append(File.generated(config, where, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = Path(page.file.src_uri).parent

    def mended(link: re.Match[str]) -> str:
        target = link["target"]
        if ":" in target or target.startswith("#"):
            return link[0]
        path = os.path.normpath(here / target.partition("#")[0])
        if not path.startswith(".."):
            return link[0]
        outside = os.path.normpath(Path("docs") / path)
        if outside.startswith("examples" + os.sep):
            return f"[{link['text']}]({os.path.relpath(outside, here)}.md)"
        return f"{link['text']} (`{outside}`)" if link["text"] != Path(outside).name else f"`{outside}`"

    return _LINK.sub(mended, markdown)


def _made_pages() -> Iterator[tuple[str, str]]:
    yield "index.md", _readme()
    yield "decisions/index.md", _list_of_decisions()
    for path in _examples():
        yield f"examples/{path.name}.md", f"# {path.name}\n\n```python\n{path.read_text(encoding='utf-8')}```\n"
    os.environ["COLUMNS"] = "100"  # of help texts
    yield "reference/api.md", _api()
    yield "reference/commands.md", _commands()
    yield from _names()


def _examples() -> list[Path]:
    return sorted((ROOT / "examples").glob("*.py"))


def _decisions() -> list[Path]:
    return sorted((ROOT / "docs" / "decisions").glob("0*.md"))


def _list_of_decisions() -> str:
    titles = ((path.name, path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")) for path in _decisions())
    intro = "# Decisions\n\nChoices that a successor might undo: what led to each, and what was refused.\n"
    return "\n".join([intro, *(f"* [{title}]({name})" for name, title in titles)]) + "\n"


def _readme() -> str:
    """With links as they are seen from docs/."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")

    def seen_from_docs(link: re.Match[str]) -> str:
        target = link[2]
        if ":" in target or target.startswith("#"):
            return link[0]
        inside = target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"
        return f"{link[1]}({inside})"

    return re.sub(r"(\])\(([^)\s]+)\)", seen_from_docs, text).replace("(decisions/)", "(decisions/index.md)")


def _api() -> str:
    import outpace

    names = [name for name in outpace.__all__ if not name.startswith("_")]
    errors = [name for name in names if issubclass(_class_of(getattr(outpace, name)), Exception)]
    parts = ["# Python", "All that a script may use is in `outpace` itself."]
    for title, listed in (("Training", [name for name in names if name not in errors]), ("Errors", errors)):
        parts += [f"## {title}", *(f"::: outpace.{name}" for name in listed)]
    return "\n\n".join(parts) + "\n"


def _class_of(value: object) -> type:
    return value if isinstance(value, type) else object


def _commands() -> str:
    from outpace.cli import COMMANDS, parser_of

    parser = parser_of(*COMMANDS)
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    parts = ["# Commands", _console(parser)]
    for name, command in commands.choices.items():
        parts += [f"## outpace {name}", _console(command)]
    return "\n\n".join(parts) + "\n"


def _console(parser: argparse.ArgumentParser) -> str:
    return f"```text\n{parser.format_help().strip()}\n```"


def _names() -> Iterator[tuple[str, str]]:
    from outpace.cli.catalogue import CATALOGUE, entry

    for command, (one, makers) in CATALOGUE.items():
        intro = f"Every {one} and its options, which follow its name: `NAME:option=value,option=value`."
        parts = [f"# {command.capitalize()}", intro, f"`outpace {command} NAME` shows the same in a terminal."]
        for name in makers:
            parts += _entry(entry(command, name))
        yield f"reference/{command}.md", "\n\n".join(parts) + "\n"


def _entry(one: Any) -> Iterator[str]:
    yield f"## {one.name}"
    yield one.about
    if one.options:
        rows = [f"| `{key}` | {f'`{o.typed}`' if o.typed else ''} | {o.about} |" for key, o in one.options.items()]
        yield "\n".join(["| option | default | |", "| --- | --- | --- |", *rows])
