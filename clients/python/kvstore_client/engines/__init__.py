"""Parts that the connectors of several engines share: identity, settings, metrics, versions."""
