"""`outpace doctor` where training is easy, and in the likes of containers where it is not."""

import contextlib
import io
import json
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import outpace
from outpace.cli import doctor, main
from outpace.job.machine import available_bytes
from tests.support.forbidden import MEMFD_CREATE, forbid_memfd

MB = 1_000_000


def examined(*options):
    """The exit code, and the findings by what they are about."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = main(["doctor", "--json", *options])
    document = json.loads(said.getvalue())
    assert document["can_train"] is (code == 0)
    return code, {finding["about"]: finding for finding in document["findings"]}


def test_here_training_can_start_and_nothing_is_left_behind():
    before = set(Path("/dev/shm").iterdir())
    code, found = examined("--parameters", "1000", "--ranks", "4")
    assert code == 0
    assert list(found) == ["processors", "memory", "shared memory", "arena", "torch", "locked memory", "network"]
    assert found["shared memory"]["state"] == "good"
    assert "for 4 ranks of 1,000 parameters" in found["arena"]["what"]
    assert set(Path("/dev/shm").iterdir()) <= before


def test_the_table_says_the_same_in_words(capsys):
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "shared memory" in said
    assert "through /proc" in " ".join(said.split())


def test_a_model_that_does_not_fit_is_told_with_what_would_help():
    code, found = examined("--parameters", "70B", "--ranks", "8")
    assert code == 1
    assert found["arena"]["state"] == "bad"
    assert "fewer ranks" in found["arena"]["fix"]


def test_a_limit_of_the_container_counts_and_what_files_left_in_memory_does_not(monkeypatch, tmp_path):
    group = tmp_path / "cgroup"
    for path, text in {
        tmp_path / "proc/meminfo": "MemAvailable: 8000000 kB\n",
        tmp_path / "proc/self/cgroup": "0::/\n",
        group / "memory.max": f"{1000 * MB}\n",
        group / "memory.current": f"{990 * MB}\n",
        group / "memory.stat": f"anon {90 * MB}\ninactive_file {600 * MB}\nactive_file {200 * MB}\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(doctor, "available_bytes", partial(available_bytes, tmp_path / "proc", group))
    code, found = examined("--parameters", "2M", "--ranks", "2")
    assert "772.5 MiB free" in found["memory"]["what"]  # 810 MB
    assert code == 0
    code, found = examined("--parameters", "25M", "--ranks", "2")
    assert code == 1
    assert "772.5 MiB are free" in found["arena"]["what"]


def without_memfd():
    forbid_memfd()
    return examined()


@pytest.mark.skipif(MEMFD_CREATE is None, reason="the number of memfd_create is not known here")
def test_where_anonymous_memory_is_forbidden_files_serve_and_the_fix_is_named():
    ((code, found),) = outpace.spawn(without_memfd, 1)
    assert code == 0
    assert found["shared memory"]["state"] == "note"
    assert "files in /dev/shm" in found["shared memory"]["what"]
    assert "memfd_create" in found["shared memory"]["fix"]


def test_a_directory_that_is_too_small_is_told(monkeypatch, tiny_disk):
    monkeypatch.setenv("OUTPACE_ARENA_DIR", str(tiny_disk))
    code, found = examined("--parameters", "1M", "--ranks", "2")
    assert code == 1
    assert f"are free in {tiny_disk}" in found["arena"]["what"]
    assert "--shm-size" in found["arena"]["fix"]
    assert list(tiny_disk.iterdir()) == []


def test_a_directory_that_cannot_be_used_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("OUTPACE_ARENA_DIR", str(tmp_path / "missing"))
    code, found = examined()
    assert code == 1
    assert found["shared memory"]["state"] == "bad"
    assert "OUTPACE_ARENA_DIR" in found["shared memory"]["fix"]


def examined_after(mount, *options):
    """As `examined`, in a process that has other file systems."""
    unshared = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
    if subprocess.run([*unshared, mount], capture_output=True).returncode:
        pytest.skip(f"not permitted here: {mount}")
    command = shlex.join([sys.executable, "-m", "outpace", "doctor", "--json", *options])
    ended = subprocess.run([*unshared, f"{mount} && exec {command}"], capture_output=True, text=True)
    return ended.returncode, {finding["about"]: finding for finding in json.loads(ended.stdout)["findings"]}


NO_PROC = "mount -t tmpfs none /proc"


def test_where_proc_is_hidden_files_serve():
    code, found = examined_after(NO_PROC)
    assert code == 0
    for about in ("shared memory", "memory"):
        assert found[about]["state"] == "note"
        assert "/proc" in found[about]["what"]
        assert "mount /proc" in found[about]["fix"]


def test_a_small_dev_shm_counts_where_files_must_serve_and_only_there():
    small = "mount -t tmpfs -o size=1m none /dev/shm"
    model = ("--parameters", "1M", "--ranks", "2")
    assert examined_after(small, *model)[0] == 0
    code, found = examined_after(f"{small} && {NO_PROC}", *model)
    assert code == 1
    assert "1.0 MiB are free in /dev/shm" in found["arena"]["what"]
    assert "--shm-size for docker" in found["arena"]["fix"]


@pytest.mark.parametrize("text", ["", "-1", "many", "0", "1X"])
def test_a_wrong_number_of_parameters_is_refused(text, capsys):
    with pytest.raises(SystemExit) as end:
        main(["doctor", f"--parameters={text}"])
    assert end.value.code == 2
    assert "as 25000000, 350M or 1.5B" in capsys.readouterr().err
