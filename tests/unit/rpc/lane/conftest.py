"""The transport of the tests of lanes."""

import pytest


@pytest.fixture
def over() -> str:
    """Names lanes as the transport of the request path."""
    return "lane"
