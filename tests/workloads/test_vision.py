"""Vision: real images where there are some, small ones where there are none, and words for every bad file."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch

from outpace.errors import OutpaceError
from outpace.workloads import vision, workload
from outpace.workloads.vision import DEBIAN, HELD_OUT, TRAINED, Vision, read_idx

FILES = {"train": TRAINED, "t10k": HELD_OUT}


def idx(shape: tuple[int, ...], content: bytes) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape) + content


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A dataset of 10 x 10 pixels, where each image is as bright as its class says; half of it compressed."""
    for part, count in FILES.items():
        classes = bytes(number % 10 for number in range(count))
        pixels = b"".join(bytes([25 * label] * 100) for label in classes)
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx((count, 10, 10), pixels), 1))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx((count,), classes))
    return tmp_path


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(vision, "DEBIAN", tmp_path / "not installed")


def test_images_come_from_the_given_directory(directory: Path) -> None:
    task = workload(f"vision:data={directory}")
    inputs, targets = task.batch(0, 0, 8)
    assert inputs.shape == (16, 1, 10, 10)
    assert torch.allclose(inputs[:, 0, 3, 3], targets * 25 * 2 / 255 - 1)


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_fashion_mnist_is_halved_and_its_test_images_are_held_out() -> None:
    task = Vision()
    assert task._inputs.shape == (TRAINED, 1, 14, 14)
    assert task._held_out[0].shape == (HELD_OUT, 1, 14, 14)
    assert task._targets.unique().tolist() == list(range(10))
    assert task._inputs.min() == -1
    assert task._inputs.max() == pytest.approx(1)


@pytest.mark.usefixtures("no_package")
def test_without_the_package_the_small_digits_are_trained_on_as_long() -> None:
    task = Vision()
    assert task.batch(0, 0, 8)[0].shape == (16, 1, 8, 8)
    assert task.race_epochs * task.steps_per_epoch == vision.RACE_STEPS == Vision.race_epochs * (TRAINED // 128)
    assert 0 <= task.score(task.model()).metric < 0.3


def test_a_directory_that_does_not_exist_is_named() -> None:
    with pytest.raises(OutpaceError, match=r"data=/no/such/place, which is not a directory.*train-images-idx3-ubyte"):
        Vision(data="/no/such/place")


def test_an_empty_directory_lists_the_files_that_are_looked_for(tmp_path: Path) -> None:
    names = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
    with pytest.raises(OutpaceError, match=", ".join(names)):
        Vision(data=str(tmp_path))


def test_of_an_incomplete_directory_only_what_is_missing_is_listed(directory: Path) -> None:
    (directory / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(OutpaceError, match=r"with or without .gz at its end: t10k-labels-idx1-ubyte$"):
        Vision(data=str(directory))


@pytest.mark.parametrize(("content", "words"), [
    (b"<html>not found</html>", "is not an IDX file of bytes in 3 .* begins with 3c 68 74 6d"),
    (b"", "is not an IDX file .* begins with nothing"),
    (idx((60_000,), b"labels"), "is not an IDX file of bytes in 3"),
    (idx((100, 28, 28), b""), "has 100 items; 8,192 are needed"),
    (idx((60_000, 28, 28), b"1234"), "is cut off after 20 of at least 6,422,544 bytes"),
    (gzip.compress(idx((60_000, 28, 28), b"1234"), mtime=0)[:-9], "is cut off after"),
    (b"\x1f\x8b\x08\x00 and no more of it", "cannot be read|is not an IDX file"),
])  # fmt: skip
def test_a_file_that_is_none_or_is_cut_off_is_named(directory: Path, content: bytes, words: str) -> None:
    (directory / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(OutpaceError, match=rf"train-images-idx3-ubyte.gz {words}"):
        Vision(data=str(directory))


def test_images_of_another_kind_are_refused(directory: Path) -> None:
    (directory / "train-labels-idx1-ubyte").write_bytes(idx((TRAINED,), bytes([77] * TRAINED)))
    with pytest.raises(OutpaceError, match="classes up to 77"):
        Vision(data=str(directory))


def test_no_more_of_a_file_is_read_than_is_needed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(idx((1000,), bytes([1, 2, 3])))
    assert read_idx(tmp_path / "file", dimensions=1, count=3).tolist() == [1, 2, 3]
