"""The addresses of a tenant's events."""

from pathlib import Path

import pytest

from kvstore.kv_events.endpoints import Endpoint, UnusableEndpoint, endpoint_at, endpoint_in


def test_a_tenant_has_sockets_of_its_name() -> None:
    """Or of a digest of it, if the path would be too long."""
    folder = Path("/run/kvstore/kv-events")
    found = endpoint_in(folder, "uid-0")
    assert found == Endpoint(f"ipc://{folder}/uid-0.pub", f"ipc://{folder}/uid-0.replay")
    long = Path("/" + "x" * 80)
    short = endpoint_in(long, "t" * 64)
    assert short == endpoint_in(long, "t" * 64)
    assert short != endpoint_in(long, "t" * 63 + "u")
    assert len(short.replay) <= len("ipc://") + 107
    with pytest.raises(UnusableEndpoint, match=r"choose a shorter --runtime-dir"):
        endpoint_in(Path("/" + "x" * 95), "uid-0")


@pytest.mark.parametrize(
    ("address", "replay"),
    [
        ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558"),
        ("tcp://[::1]:5557", "tcp://[::1]:5558"),
        ("tcp://*:0", "tcp://*:0"),
        ("ipc:///run/events", "ipc:///run/events.replay"),
    ],
)
def test_replays_have_the_next_port(address: str, replay: str) -> None:
    """Or the same path with more behind it."""
    assert endpoint_at(address) == Endpoint(address, replay)
