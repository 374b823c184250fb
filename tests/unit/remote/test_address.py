"""Addresses of Valkey: five forms, and no password in any of them."""

import pytest

from kvstore.remote.valkey.address import (
    ClusterAddress,
    EngineAddress,
    SentinelAddress,
    UnusableEngineAddress,
    parse_address,
)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (EngineAddress("/run/v.sock"), "/run/v.sock"),
        (EngineAddress(None, "host", 7000, is_tls=True), "host:7000"),
        (EngineAddress(None, "::1", 7000), "[::1]:7000"),
    ],
)
def test_people_see_an_address_as_they_wrote_it(address: EngineAddress, shown: str) -> None:
    """It is in the errors that name an engine."""
    assert f"{address}" == shown


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("valkey+unix:///run/v.sock", EngineAddress("/run/v.sock")),
        ("valkey://host", EngineAddress(None, "host", 6379)),
        ("valkey://host:7000/", EngineAddress(None, "host", 7000)),
        ("valkeys://host:7000", EngineAddress(None, "host", 7000, is_tls=True)),
        ("valkey://[::1]:7000", EngineAddress(None, "::1", 7000)),
        (
            "valkey+cluster://a:1,b",
            ClusterAddress((EngineAddress(None, "a", 1), EngineAddress(None, "b", 6379))),
        ),
        (
            "valkeys+sentinel://a:1,b/pages",
            SentinelAddress(
                (
                    EngineAddress(None, "a", 1, is_tls=True),
                    EngineAddress(None, "b", 26379, is_tls=True),
                ),
                b"pages",
            ),
        ),
    ],
)
def test_an_address_has_one_of_five_forms(
    url: str, address: EngineAddress | ClusterAddress | SentinelAddress
) -> None:
    """A unix socket, a host, nodes of a cluster, or Sentinels; ports have defaults."""
    assert parse_address(url) == address


@pytest.mark.parametrize(
    "url",
    [
        *("", "host:6379", "redis://host", "valkey://", "valkey+unix://run/v.sock"),
        *("valkey+unix://", "valkey://host:port", "valkey://host:99999", "valkey://host/0"),
        *("valkey://host?db=1", "valkey://host#x", "valkey://[::1", "valkey://a,b"),
        *("valkey+cluster://a/0", "valkey+cluster://a,", "valkey+sentinel://a", "valkey+x://a"),
        *("valkey+sentinel://a/", "valkey+sentinel://a/b/c", "valkeys+unix:///v.sock"),
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
