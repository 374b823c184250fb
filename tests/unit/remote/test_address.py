"""Addresses of engines: three forms, and no password in any of them."""

import pytest

from kvstore.remote.valkey.address import EngineAddress, UnusableEngineAddress, parse_address


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("valkey+unix:///run/v.sock", EngineAddress("/run/v.sock")),
        ("valkey://host", EngineAddress(None, "host", 6379)),
        ("valkey://host:7000/", EngineAddress(None, "host", 7000)),
        ("valkeys://host:7000", EngineAddress(None, "host", 7000, is_tls=True)),
        ("valkey://[::1]:7000", EngineAddress(None, "::1", 7000)),
    ],
)
def test_an_address_has_one_of_three_forms(url: str, address: EngineAddress) -> None:
    """A unix socket, a host, or a host over TLS; the port has a default."""
    assert parse_address(url) == address


@pytest.mark.parametrize(
    "url",
    [
        *("", "host:6379", "redis://host", "valkey://", "valkey+unix://run/v.sock"),
        *("valkey+unix://", "valkey://host:port", "valkey://host:99999", "valkey://host/0"),
        *("valkey://host?db=1", "valkey://host#x", "valkey://[::1"),
    ],
)
def test_other_addresses_are_refused(url: str) -> None:
    """The message says how to write one."""
    with pytest.raises(UnusableEngineAddress, match="valkey"):
        parse_address(url)


@pytest.mark.parametrize("url", ["valkey://:secret@host", "valkeys://user:secret@host"])
def test_a_password_in_an_address_is_refused(url: str) -> None:
    """The message does not repeat it, since messages go to logs."""
    with pytest.raises(UnusableEngineAddress, match="write that to a file") as raised:
        parse_address(url)
    assert "secret" not in str(raised.value)
