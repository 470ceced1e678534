"""What tests of several directories need."""

import multiprocessing
import subprocess

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says something about the machine's load, and nothing about the code.
settings.register_profile("any load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any load")

# There is one fork server to a process. Whichever test starts it, ranks are to find torch imported in it.
multiprocessing.set_forkserver_preload(["outpace.launching.preload"])


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system with room for 16 KB."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("mounting a file system is not permitted here")
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)
