"""The succession of a store, by the settings."""

import os
from functools import partial
from pathlib import Path

from kvstore.config.settings import Config
from kvstore.holder.carrier import CarrierRefused, DescriptorCarrier
from kvstore.holder.holder_client import HolderClient, start_holder
from kvstore.holder.systemd_store import SystemdStore
from kvstore.service_manager import ServiceManager
from kvstore.succession.store_succession import Succession


def succession_of(config: Config) -> Succession:
    """Returns the succession of a store; raises ``CarrierRefused`` for unusable descriptors."""
    return Succession(
        carrier_of(config),
        holder=config.holder,
        settings=settings_to_keep(config),
        journal_bytes=config.bytes_of_the_journal,
    )


def carrier_of(config: Config) -> DescriptorCarrier | None:
    """Returns the carrier of the store's memory, or None if that ends with the server.

    Raises ``CarrierRefused`` if systemd is to keep it and did not start this process.
    """
    if config.holder == "off":
        return None
    if config.holder == "systemd":
        if "NOTIFY_SOCKET" not in os.environ:
            raise CarrierRefused(
                "holder is systemd, but $NOTIFY_SOCKET is not set: give the unit Type=notify and "
                "FileDescriptorStoreMax=, or set another --holder"
            )
        return SystemdStore(ServiceManager.from_environment())
    folder = Path(config.holder)
    return HolderClient(
        folder, start=partial(start_holder, folder) if config.holder_start else None
    )


def settings_to_keep(config: Config) -> dict[str, str]:
    """Returns the settings by which one server can read what another one left."""
    return {
        "device": config.device,
        "prefix_cache_backend": config.prefix_cache_backend,
        "tier2_bytes": "present" if config.tier2_bytes else "absent",
        "tier3_path": str(config.tier3_path or ""),
    }
