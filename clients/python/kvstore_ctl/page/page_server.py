"""The page's server: a thread that polls the store, and uvicorn on loopback."""

import ipaddress
import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread

import uvicorn

from kvstore_client.errors import StoreError
from kvstore_ctl.page.page_routes import PageSite
from kvstore_ctl.page.store_feed import Feed

# Seconds between two snapshots.
INTERVAL = 1.0
# A browser opens six connections, and shows no page that lacks a file.
MAX_REQUESTS = 48
# Seconds for open requests to end.
GRACE = 1


def listen(address: str) -> socket.socket:
    """Returns a socket that listens at ``HOST:PORT``; port 0 is any that is free.

    Raises ``ValueError`` if the host is not loopback, or the address cannot be used.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or not _is_loopback(host):
        raise ValueError(f"--listen {address}: use an address of loopback, such as 127.0.0.1:7402")
    try:
        family, *_, place = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        return socket.create_server(place, family=family)
    except (OSError, OverflowError) as error:
        advice = "choose another port, or port 0 for a free one"
        raise ValueError(f"--listen {address}: {error}: {advice}") from None


def serve(feed: Feed, listener: socket.socket, say: Callable[[str], None]) -> None:
    """Serves the page until SIGINT or SIGTERM. ``say`` gets the page's address.

    Raises ``StoreError`` if the store does not answer at the start; later it asks again.
    """
    feed.poll()
    ended = Event()
    poller = Thread(target=_poll, args=(feed, ended), name="page-poller", daemon=True)
    poller.start()
    host, port = listener.getsockname()[:2]
    say(f"http://{f'[{host}]' if ':' in host else host}:{port}/")
    config = uvicorn.Config(
        PageSite(feed).app(),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        limit_concurrency=MAX_REQUESTS,
        timeout_graceful_shutdown=GRACE,
    )
    try:
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])
    finally:
        ended.set()
        poller.join()


def _poll(feed: Feed, ended: Event) -> None:
    while not ended.wait(INTERVAL):
        with suppress(StoreError):
            feed.poll()


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
