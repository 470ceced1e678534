"""Builds the device once for all tests here, and says why not where it cannot."""

import pytest

from tests.support import laggard


@pytest.fixture(scope="session", autouse=True)
def _device():
    try:
        laggard.build()
    except laggard.NoCompiler as why:
        pytest.skip(f"the device of these tests cannot be built: {why}")
