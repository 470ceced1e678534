"""Hosts for these tests, or a plain reason why there are none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.network.namespaces import Hosts, why_not


@pytest.fixture(scope="session")
def network() -> None:
    """Skips whatever asks for it on a machine where hosts cannot be built."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def two_hosts(network: None) -> Iterator[Hosts]:
    with Hosts(2) as hosts:
        yield hosts


@pytest.fixture
def three_hosts(network: None) -> Iterator[Hosts]:
    with Hosts(3) as hosts:
        yield hosts
