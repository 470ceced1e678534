"""What tests of several directories need."""

import subprocess

import pytest


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system with room for 16 KB."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("mounting a file system is not permitted here")
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)
