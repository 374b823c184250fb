"""The server's settings of what it shows over HTTP."""

from typing import Annotated, Self

from pydantic import AfterValidator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from kvstore.config_about import Shown
from kvstore.config_types import ListenAddress
from kvstore.http.address import is_loopback, parse_address


def _loopback(value: str) -> str:
    if not is_loopback(parse_address(value).host):
        raise ValueError(
            f"has to be of this host alone, such as 127.0.0.1:7402, and is {value!r}: "
            "`ssh -L` brings it to another"
        )
    return value


LoopbackAddress = Annotated[ListenAddress, AfterValidator(_loopback)]


class HttpSettings(BaseSettings):
    """Where people and Prometheus look at a server."""

    model_config = SettingsConfigDict(use_attribute_docstrings=True)

    metrics_listen: Annotated[ListenAddress | None, Shown(log="http_listening")] = None
    """HOST:PORT where Prometheus finds `/metrics`, and probes `/healthz` and `/livez`.

    Whoever connects reads it, without a credential and in clear: numbers, and the names
    of tenants, namespaces and leases, never a token of a prompt. Port 0 is any that is
    free; the log's `http_listening` says which. Wrong when Prometheus shows the target as down.
    Absent: no metrics. Start with: 127.0.0.1:7401, or an address that the scraper alone reaches.
    """

    page_listen: Annotated[LoopbackAddress | None, Shown(log="http_listening")] = None
    """HOST:PORT of loopback where a browser finds a page of what the store does.

    Every user of this host can read it, without a credential: figures, and the names of
    tenants, namespaces and leases. It changes nothing, and other hosts see it by `ssh -L`
    alone. Port 0 is any that is free; the log's `http_listening` says which. docs/page.md
    has what it shows. Wrong when the browser is told "ask for localhost".
    Absent: no page. Start with: 127.0.0.1:7402, while somebody looks.
    """

    page_tokens: Annotated[bool, Shown(log="http_listening")] = False
    """Show the first token ids of each prefix on the page, which are what users wrote.

    Needs `page_listen`, and is for a host that only its operators can use. Wrong when
    anybody else can. Start with: false.
    """

    @model_validator(mode="after")
    def _require_page(self) -> Self:
        if self.page_tokens and self.page_listen is None:
            raise ValueError("page_tokens says what the page shows: set page_listen, or leave it")
        return self
