"""Logs of connectors in the process that runs the tests."""

import logging

from kvstore_client.engines.log import CLIENT


def forget_connector_logs(connector: str) -> None:
    """Undoes ``log_with``, so that the next test's events go where Python sends them."""
    for name in (connector, CLIENT):
        ours = logging.getLogger(name)
        ours.handlers.clear()
        ours.setLevel(logging.NOTSET)
        ours.propagate = True
