"""The listener of the web page, where the settings ask for it."""

from contextlib import ExitStack

import structlog

from kvstore.config.settings import Config
from kvstore.http.server import HttpServer
from kvstore.page.site import PageSite
from kvstore.rpc.health.watchdog import Health
from kvstore.service.clock import Clock
from kvstore.service.store import KVStore
from kvstore.service.threads import Ticker

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Seconds between two samples of what was counted.
INTERVAL = 1.0
NAME = "page"
# A browser asks for six of the page's files at a time, and shows no page that lacks one.
MAX_CONNECTIONS = 48


def show_page(
    config: Config, store: KVStore, health: Health, clock: Clock, stack: ExitStack
) -> None:
    """Starts the listener, and what counts beside it; ``stack`` closes both.

    Raises ``UnusableHttpAddress``. Nothing happens where no address is set.
    """
    if config.page_listen is None:
        return
    budgets = {1: config.tier1_bytes, 2: config.tier2_bytes}
    site = PageSite(
        store,
        clock,
        budgets={tier: int(size) for tier, size in budgets.items() if size},
        shows_tokens=config.page_tokens,
    )
    site.tick()
    samples = Ticker("page_samples", (site.tick,), clock=clock, interval=INTERVAL)
    samples.start()
    stack.callback(samples.close)
    server = HttpServer(
        config.page_listen,
        site.routes(),
        clock=clock,
        name=NAME,
        max_connections=MAX_CONNECTIONS,
    )
    server.start()
    stack.callback(server.close)
    health.watch(NAME, server)
    shows = "page with tokens" if config.page_tokens else NAME
    log.info("http_listening", shows=shows, host=server.address.host, port=server.address.port)
