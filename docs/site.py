"""What the site has beside the pages in docs/. Owns the pages that are made from the code, and links that leave docs/.

The first page is the README, so that nothing is said twice. Examples are pages of their own. The reference is made from
docstrings, arguments and parsers. A link to another file of the repository, which a site cannot follow, is shown as the
file's name.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import tempfile
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
        "Examples": ["examples/index.md", *(f"examples/{path.name}.md" for path in _examples())],
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
            shown = outside.replace("README.md", "index") + ".md"
            return f"[{link['text']}]({os.path.relpath(shown, here)})"
        return f"{link['text']} (`{outside}`)" if link["text"] != Path(outside).name else f"`{outside}`"

    return _LINK.sub(mended, markdown)


def _made_pages() -> Iterator[tuple[str, str]]:
    yield "index.md", _readme()
    yield "decisions/index.md", _list_of_decisions()
    yield "examples/index.md", _list_of_examples()
    for path in _examples():
        yield (
            f"examples/{path.name}.md",
            f"# {path.name}\n\n{_example(path)}\n",
        )
    os.environ["COLUMNS"] = "88"  # of help texts
    yield "reference/api.md", _api()
    yield "reference/commands.md", _commands()
    yield "reference/formats.md", _formats()
    yield from _names()


def _examples() -> list[Path]:
    return sorted(path for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".ipynb"))


def _list_of_examples() -> str:
    return re.sub(r"\]\(([^)]+)\)", r"](\1.md)", (ROOT / "examples" / "README.md").read_text(encoding="utf-8"))


def _example(path: Path) -> str:
    """A script as it is, a notebook cell by cell."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return f"```python\n{text}```"
    cells = ((cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"])
    return "\n\n".join(f"```python\n{source}\n```" if kind == "code" else source for kind, source in cells)


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
    import outpace.data

    names = [name for name in outpace.__all__ if not name.startswith("_")]
    errors = [name for name in names if issubclass(_class_of(getattr(outpace, name)), Exception)]
    parts = ["# Python", "All that a script may use. Strategies as objects are in [strategies](strategies.md)."]
    data = [f"data.{name}" for name in outpace.data.__all__]
    trained = [name for name in names if name not in errors]
    for title, listed in (("Training", trained), ("Data", data), ("Errors", errors)):
        parts += [f"## {title}", *(f"::: outpace.{name}" for name in listed)]
    return "\n\n".join(parts) + "\n"


def _class_of(value: object) -> type:
    return value if isinstance(value, type) else object


def _commands() -> str:
    from outpace.cli.parser import command_line

    parser = command_line()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    parts = ["# Commands", _console(parser)]
    for name, command in commands.choices.items():
        parts += [f"## outpace {name}", _console(command)]
    return "\n\n".join(parts) + "\n"


def _console(parser: argparse.ArgumentParser) -> str:
    return f"```text\n{parser.format_help().strip()}\n```"


def _formats() -> str:
    """JSON schemas, made of the declarations that write and read the documents."""
    import msgspec

    from outpace.observe import live_figures, schema
    from outpace.race import directory, result
    from outpace.version import __version__

    parts = [
        "# JSON documents",
        f"As of outpace {__version__}. What is added later has keys of its own: ignore those that you do not know.",
        f"## Recordings, format {schema.FORMAT}",
        "`rank-00003.jsonl` has one object a line. Times are nanoseconds of the host's monotonic clock. The first "
        "line relates them to wall-clock time. A line is of the first kind below whose key it has.",
    ]
    for key, kind in schema.KINDS.items():
        parts += [f"### `{key}`", _schema(msgspec.json.schema(kind))]
    parts += [
        f"## race.json, format {directory.FORMAT}",
        "In the directory of a race. Its key `format` is the number above.",
        _schema(msgspec.json.schema(result.Race)),
        "## `--json` of commands",
        "Each document is one object. Its key `outpace` is the version that wrote it. `outpace watch --json` has:",
        _schema(msgspec.json.schema(live_figures.Live)),
        "What follows are keys and types of small documents. A value that was null there may be something else.",
    ]
    for command, document in _documents():
        parts += [f"`outpace {command} --json`:", _schema(_seen(document))]
    return "\n\n".join(parts) + "\n"


def _schema(document: dict[str, Any]) -> str:
    return f"```json\n{json.dumps(document, indent=1)}\n```"


def _documents() -> Iterator[tuple[str, Any]]:
    """What commands print, of the smallest runs there are."""
    from outpace.cli import main

    with tempfile.TemporaryDirectory() as run:
        _record(Path(run))
        simulated = ["simulate", "--ranks", "2", "--steps", "2", "--strategies", "eager-majority", "--quiet"]
        for command in (simulated, ["advise", run, "--quiet"], ["trace", run], ["doctor"]):
            told = io.StringIO()
            with contextlib.redirect_stdout(told):
                main([*command, "--json"])
            yield command[0], json.loads(told.getvalue())


def _record(run: Path) -> None:
    """A few steps of two ranks, which are one."""
    import torch

    import outpace

    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight])
    recording = outpace.record(optimizer, run)
    for _ in range(8):
        weight.sum().backward()
        optimizer.step()
    recording.close()
    first, _, steps = (run / "rank-00000.jsonl").read_text(encoding="utf-8").partition("\n")
    for rank in range(2):
        header = json.dumps(json.loads(first) | {"rank": rank, "world": 2})
        (run / f"rank-{rank:05d}.jsonl").write_text(f"{header}\n{steps}", encoding="utf-8")


def _seen(value: Any) -> dict[str, Any]:
    """The schema of a document that one has: of a list, that of its first element."""
    if isinstance(value, dict):
        return {"type": "object", "properties": {key: _seen(inner) for key, inner in value.items()}}
    if isinstance(value, list):
        return {"type": "array", **({"items": _seen(value[0])} if value else {})}
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    return {"type": kinds[type(value)]}


def _names() -> Iterator[tuple[str, str]]:
    from outpace.cli.catalogue import CATALOGUE, entry

    for command, (one, makers) in CATALOGUE.items():
        intro = f"Every {one} and its options, which follow its name: `NAME:option=value,option=value`."
        parts = [f"# {command.capitalize()}", intro, f"`outpace {command} NAME` shows the same in a terminal."]
        for name, maker in makers.items():
            parts += _entry(entry(command, name))
            if command == "strategies" and isinstance(maker, type):
                parts.append(f"As an object: `outpace.strategies.{maker.__name__}(...)`.")
        yield f"reference/{command}.md", "\n\n".join(parts) + "\n"


def _entry(one: Any) -> Iterator[str]:
    yield f"## {one.name}"
    yield one.about
    if one.options:
        rows = [f"| `{key}` | {f'`{o.typed}`' if o.typed else ''} | {o.about} |" for key, o in one.options.items()]
        yield "\n".join(["| option | default | |", "| --- | --- | --- |", *rows])
