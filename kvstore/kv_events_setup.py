"""The publisher of KV events from the settings."""

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import time

import structlog

from kvstore.config.settings import Config
from kvstore.kv_events.block_names import BlockNames
from kvstore.kv_events.publisher import Publisher
from kvstore.kv_events.sequence_numbers import SequenceNumbers, WrongNumbers
from kvstore.kv_events.tenant_stream import Settings
from kvstore.kv_events.wire import Wire
from kvstore.service.clock import Clock
from kvstore.service.store import KVStore
from kvstore.service.tenancy.tenant_lookup import Tenants

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

FOLDER = "kv-events"
FOLDER_MODE = 0o700


def publish_kv_events(
    config: Config, tenants: Tenants, store: KVStore, clock: Clock, stack: ExitStack
) -> Publisher | None:
    """Starts to publish the changes of a store's blocks, if the settings say so.

    The store MUST NOT serve yet. ``stack`` ends the publisher. Raises ``UnusableEndpoint`` or
    ``WrongNumbers``.
    """
    if not config.kv_events:
        return None
    feed = store.follow_blocks()
    names = BlockNames(store.succession.credential_key, store.epoch)
    publisher = Publisher(
        feed,
        wire=partial(Wire, config.kv_events_format, names),
        numbers=SequenceNumbers(_number_file(config), time),
        clock=clock,
        folder=config.runtime_dir.absolute() / FOLDER,
        addresses=_addresses(config, tenants),
        settings=Settings(
            topic=config.kv_events_topic.encode(),
            replays_topic=config.kv_events_format == "map",
        ),
    )
    if config.kv_events_insecure:
        log.warning("kv_events_insecure", bind=config.kv_events_bind)
    store.kv_event_uses = publisher.use
    publisher.start()
    stack.callback(publisher.close)
    return publisher


def _addresses(config: Config, tenants: Tenants) -> dict[str, str]:
    """Returns the addresses of the settings, by tenant."""
    own = tenants.of_uid(os.geteuid())
    own_name = f"uid-{os.geteuid()}" if own is None else own.name
    return {tenant or own_name: each for tenant, each in config.kv_events_addresses.items()}


def _number_file(config: Config) -> Path:
    """Returns the file of the last number, in a folder that it makes; raises ``WrongNumbers``.

    If this machine has no folder for state, the file is in the runtime folder.
    """
    for folder in (config.state_folder(FOLDER), config.runtime_dir.absolute() / FOLDER):
        try:
            folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        except OSError as error:
            log.info("kv_events_folder_unusable", folder=str(folder), why=error.strerror)
            continue
        if os.access(folder, os.W_OK | os.X_OK):
            return folder / "last-number"
    raise WrongNumbers(f"{folder}: cannot be written")
