"""Where HTTP is listened on, and which names a request may call it by."""

import socket

import pytest

from kvstore.http.address import (
    HttpAddress,
    UnusableHttpAddress,
    is_loopback,
    may_be_named,
    parse_address,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7401", ("127.0.0.1", 7401)),
        ("[::1]:0", ("::1", 0)),
        ("localhost:80", ("localhost", 80)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    """The brackets of IPv6 are the text's, not the host's."""
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("LocalHost", True),
        ("0.0.0.0", False),  # noqa: S104 - it is told apart
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
    ],
)
def test_this_machine_alone_is_told_apart(host: str, own: bool) -> None:  # noqa: FBT001 - a case
    """By number or by name; every address, or another machine's name, is not."""
    assert is_loopback(host) == own


@pytest.mark.parametrize(
    "header",
    ["localhost", "localhost:7401", "127.0.0.1", "127.0.0.1:1", "[::1]:7401", "[::1]"],
)
def test_own_names_are_let_in(header: str) -> None:
    """With or without a port."""
    assert may_be_named(header)


@pytest.mark.parametrize(
    "header",
    ["", "kvstore.example:7401", "127.0.0.1.example", "localhost.example:80", "127.0.0.1:80:80"],
)
def test_a_site_s_own_name_for_this_machine_is_not(header: str) -> None:
    """Whatever that name leads to."""
    assert not may_be_named(header)


def test_an_address_that_is_taken_is_an_error_that_names_it() -> None:
    """Two listeners of one port are one too many."""
    with HttpAddress("127.0.0.1", 0).bind() as first:
        port = first.getsockname()[1]
        with pytest.raises(UnusableHttpAddress, match=rf"127\.0\.0\.1:{port} .* in use"):
            HttpAddress("127.0.0.1", port).bind()


def test_an_address_of_nobody_is_an_error_that_names_it() -> None:
    """A number of another machine is none of this one's."""
    with pytest.raises(UnusableHttpAddress, match=r"192\.0\.2\.1:80"):
        HttpAddress("192.0.2.1", 80).bind()


def test_it_listens_on_ipv6() -> None:
    """Where the machine has it."""
    if not socket.has_ipv6:
        pytest.skip("needs IPv6")
    try:
        listener = HttpAddress("::1", 0).bind()
    except UnusableHttpAddress as error:
        pytest.skip(f"needs ::1: {error}")
    with listener:
        assert listener.family is socket.AF_INET6
