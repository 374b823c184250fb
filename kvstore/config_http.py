"""The server's settings of what it shows over HTTP."""

from typing import Annotated

from pydantic_settings import BaseSettings, SettingsConfigDict

from kvstore.config_about import Shown
from kvstore.config_types import ListenAddress


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
