"""What tests of several processes share."""

from __future__ import annotations

import pytest

from tests.support.distributed import start_server


@pytest.fixture(scope="session", autouse=True)
def _server() -> None:
    """The server of forked ranks imports while the first tests wait for their processes."""
    start_server()
