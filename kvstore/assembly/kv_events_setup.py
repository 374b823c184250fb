"""The publisher of KV events from the settings."""

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import time

import structlog

from kvstore.assembly.access_rules import Access, event_addresses
from kvstore.config.settings import Config
from kvstore.kv_events.block_names import BlockNames
from kvstore.kv_events.publisher import KvEventPublisher
from kvstore.kv_events.sequence_numbers import SequenceNumbers, WrongNumbers
from kvstore.kv_events.tenant_stream import Settings
from kvstore.kv_events.wire import Wire
from kvstore.service.clock import Clock
from kvstore.service.store import KVStore

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

FOLDER = "kv-events"
FOLDER_MODE = 0o700


def publish_kv_events(
    config: Config, access: Access, store: KVStore, clock: Clock, stack: ExitStack
) -> KvEventPublisher:
    """Starts to publish the changes of a store's blocks.

    The store MUST NOT serve yet. ``stack`` ends the publisher. Raises ``UnusableEndpoint`` or
    ``WrongNumbers``.
    """
    feed = store.follow_blocks()
    names = BlockNames(store.succession.credential_key, store.epoch)
    publisher = KvEventPublisher(
        feed,
        wire=partial(Wire, config.kv_events_format, names, has_tier_2=config.tier2_bytes > 0),
        numbers=SequenceNumbers(_number_file(config), time),
        clock=clock,
        folder=config.runtime_dir.absolute() / FOLDER,
        addresses=event_addresses(config, access.known.tenants),
        curve=access.event_keys,
        settings=Settings(
            topic=(config.kv_events_topic or "").encode(),
            replays_topic=config.kv_events_format == "map",
        ),
    )
    if config.kv_events_insecure:
        log.warning("kv_events_insecure", bind=config.kv_events_bind)
    store.kv_event_uses = publisher.use
    publisher.start()
    stack.callback(publisher.close)
    return publisher


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
