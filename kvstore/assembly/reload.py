"""Reload at SIGHUP: reads the settings and tenants files again, and applies what can change."""

from collections.abc import Callable, Iterable, Mapping

import structlog

from kvstore.config.loading import settings_error
from kvstore.config.settings import Config
from kvstore.logs import change_logging
from kvstore.service.periodic_threads import Ticker
from kvstore.service.store import KVStore

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

Change = Callable[[Config], None]


def changes(store: KVStore, tickers: Iterable[Ticker]) -> Mapping[str, Change]:
    """Returns the functions that apply new values, by the names of settings that can change."""

    def pace(config: Config) -> None:
        for each in tickers:
            each.pace(config.reaper_interval)

    def logging(config: Config) -> None:
        change_logging(config.log_format, config.log_level)

    def nothing(config: Config) -> None:
        """Does nothing, because the new value is read when it is needed."""

    return {
        "drain_grace": nothing,
        "log_format": logging,
        "log_level": logging,
        "reaper_interval": pace,
        "verify_rate": lambda config: store.change_verify_rate(config.verify_rate),
    }


class Reloader:
    """The current settings, ``config``, which :meth:`reload` reads again from their file."""

    def __init__(
        self,
        config: Config,
        changes: Mapping[str, Change],
        *,
        read: Callable[[], Config],
        read_tenants: Callable[[], bool],
    ) -> None:
        """``read`` raises ValueError. ``read_tenants`` returns whether it could use the tenants.

        ``read_tenants`` logs its result itself.
        """
        self.config = config
        self._changes = changes
        self._read = read
        self._read_tenants = read_tenants

    def reload(self) -> None:
        """Reads the files again. If one of them is unusable, logs why and changes nothing.

        Raises nothing, because a reload must not end a store.
        """
        try:
            self._reload()
        except Exception:
            log.exception("reload_failed")

    def _reload(self) -> None:
        if self.config.config_file is None and self.config.tenants_file is None:
            log.info("nothing_to_reload", why="neither config_file nor tenants_file is set")
            return
        try:
            wanted = self._read()
        except ValueError as error:
            log.warning("config_not_read", why=settings_error(error))
            return
        if not self._read_tenants():
            return
        differing = sorted(name for name in Config.model_fields if self._differs(wanted, name))
        changed = [name for name in differing if name in self._changes]
        values = {name: getattr(wanted, name) for name in changed}
        self.config = self.config.model_copy(update=values)
        for name in changed:
            self._changes[name](self.config)
        log.info("config_reloaded", changed=changed)
        if fixed := [name for name in differing if name not in self._changes]:
            log.warning("config_needs_restart", unchanged=fixed)

    def _differs(self, wanted: Config, name: str) -> bool:
        return bool(getattr(wanted, name) != getattr(self.config, name))
