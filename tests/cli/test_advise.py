"""`outpace advise` on recordings, whole and damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outpace.cli import main

MS = 1_000_000


def record(directory: Path, compute_ms: list[list[int]], world: int | None = None) -> Path:
    """What DDP's ranks would have recorded: each step ends 2 ms after its slowest rank's computing."""
    directory.mkdir()
    world = world or len(compute_ms)
    now = 0
    lines: list[list[str]] = [[] for _ in compute_ms]
    for rank, written in enumerate(lines):
        header = {"outpace": "0.1.0", "trace": 1, "rank": rank, "world": world, "strategy": "ddp", "host": "here"}
        times = {"payload_bytes": 1000, "incarnation": 1, "pid": 7, "monotonic_ns": 0, "unix_s": 0.0}
        written.append(json.dumps({**header, **times}))
    for step, computing in enumerate(zip(*compute_ms, strict=True), 1):
        end = now + (max(computing) + 2) * MS
        for rank, mine in enumerate(computing):
            ready = now + mine * MS
            line = {"step": step, "begin": now, "ready": ready, "end": end, "waited_s": (end - ready) / 1e9}
            lines[rank].append(json.dumps({**line, "apply_s": 0.0}))
        now = end
    for rank, written in enumerate(lines):
        (directory / f"rank-{rank:05}.jsonl").write_text("\n".join(written) + "\n")
    return directory


def uneven(directory: Path) -> Path:
    """One of four ranks in turn computes three times as long."""
    return record(directory, [[60 if step % 4 == rank else 20 for step in range(60)] for rank in range(4)])


def advised(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, object]:
    assert main(["advise", str(path), *options, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_uneven_ranks_get_a_strategy_and_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", str(uneven(tmp_path / "run"))]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "4 ranks under ddp: a step takes 62.0 ms, of which 30.0 ms computing, 30.0 ms (48%) waiting" in out
    assert "Recommendation: eager-" in out
    assert "Waiting for others costs 48% of a step now. eager-" in out


def test_split_data_are_what_is_advised_on_and_one_pool_is_shown_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run = record(tmp_path / "run", [[50] * 60, *[[20] * 60] * 3])
    assert main(["advise", str(run)]) == 0
    captured = capsys.readouterr()
    assert "eager-solo, data shared: replaying" in captured.err
    lines = captured.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert next(line for line in lines if "strategy" in line).split()[-1] == "shared"
    solo = next(line for line in lines if "eager-solo" in line).split()
    assert float(solo[2].removesuffix("x")) < 1.05
    assert float(solo[-1].removesuffix("x")) > 2
    split, shared = advised(run, capsys), advised(run, capsys, "--data", "shared")
    assert (split["data"], shared["data"]) == ("split", "shared")
    assert split["recommended"] is None
    assert str(shared["recommended"]).startswith("eager")
    assert split["if_shared"]["strategies"] == shared["strategies"]  # type: ignore[index]
    assert main(["advise", str(run), "--data", "shared"]) == 0
    assert next(line for line in capsys.readouterr().out.splitlines() if "strategy" in line).split()[-1] == "share"


def test_balanced_ranks_are_told_to_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = advised(record(tmp_path / "run", [[20] * 60] * 4), capsys)
    assert found["recommended"] is None
    assert found["reasons"][0].startswith("your ranks are balanced: stay with DDP")  # type: ignore[index]


def test_the_document_has_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = advised(uneven(tmp_path / "run"), capsys)
    assert found["now"]["waiting_share"] == pytest.approx(30 / 62)  # type: ignore[index]
    assert found["now"]["communication_s"] == pytest.approx(0.002)  # type: ignore[index]
    strategies = found["strategies"]
    assert isinstance(strategies, list)
    assert strategies[0]["strategy"] == "allreduce"
    assert all({"speedup", "late_share", "staleness", "dropped_share", "slowest_share"} <= set(s) for s in strategies)


def test_a_file_cut_in_the_middle_is_used_as_far_as_it_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = uneven(tmp_path / "run")
    file = run / "rank-00002.jsonl"
    file.write_text(file.read_text()[: len(file.read_text()) * 2 // 3])
    found = advised(run, capsys)
    assert str(found["recommended"]).startswith("eager")
    assert any("rank-00002.jsonl" in words for words in found["skipped"])  # type: ignore[attr-defined]
    assert main(["advise", str(run)]) == 0
    assert "left out: rank-00002.jsonl" in capsys.readouterr().out


def test_unknown_fields_and_lines_change_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = advised(uneven(tmp_path / "one"), capsys)
    other = uneven(tmp_path / "two")
    for file in other.iterdir():
        lines = [json.dumps({**json.loads(line), "colour": "blue"}) for line in file.read_text().splitlines()]
        file.write_text("\n".join([*lines, '{"weather": "fine"}']) + "\n")
    assert advised(other, capsys)["strategies"] == plain["strategies"]


def test_one_rank_of_many_stands_for_all_and_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = record(tmp_path / "run", [[20 + 40 * (step % 5 == 0) for step in range(60)]], world=4)
    found = advised(run, capsys)
    assert (found["world"], found["ranks_recorded"]) == (4, 1)
    assert any("3 of 4 ranks left no trace" in reason for reason in found["reasons"])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0", "no trace can be read from "),
        (b"", "no trace can be read from "),
        (b'{"loss": 1}\n', "no trace can be read from "),
        (None, "there is no trace at"),
    ],
)
def test_what_is_no_trace_is_one_line(
    content: bytes | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rank-00000.jsonl"
    if content is not None:
        file.write_bytes(content)
    assert main(["advise", str(file)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("outpace advise: ")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("compute_ms", "words"), [([[20] * 9], "single rank"), ([[0] * 9] * 2, "ever computed")])
def test_a_trace_that_shows_nothing_is_refused(
    compute_ms: list[list[int]], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", str(record(tmp_path / "run", compute_ms))]) == 2
    assert words in capsys.readouterr().err
