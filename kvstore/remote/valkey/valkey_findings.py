"""Settings of Valkey and Redis that cost hits or break promises.

The server tells them by INFO and CONFIG GET, which kvstore's user may be forbidden to run.
"""

from collections.abc import Callable, Mapping
from typing import Final

from kvstore.remote.errors import RemoteError
from kvstore.remote.finding import EngineFinding, FindingKind
from kvstore.remote.valkey.resp import RespConnection, encoded

# PEXPIREAT has GT since then, in Redis and Valkey.
OLDEST_VERSION: Final = 7
# With fewer, a fifth of the memory holds pages that no prefix reaches: docs/remote-engines.md.
FEWEST_SAMPLES: Final = 64
MOST_INFO_BYTES: Final = 1 << 16
_HITS, _PROMISE = FindingKind.HITS, FindingKind.PROMISE
# Setting, whether its value is wrong, the kind, the reason and the remedy.
_Rule = tuple[str, Callable[[str], bool], FindingKind, str, str]
_RULES: Final[tuple[_Rule, ...]] = (
    (
        "maxmemory",
        lambda value: int(value) == 0,
        _HITS,
        "The server grows until the machine has no memory left, and is killed.",
        "Set maxmemory to what the machine can spare.",
    ),
    (
        "maxmemory-policy",
        lambda value: value.startswith("allkeys"),
        _PROMISE,
        "The server evicts control values, so removals are lost and hosts miss all pages.",
        "Set maxmemory-policy volatile-ttl.",
    ),
    (
        "maxmemory-policy",
        lambda value: not value.startswith("allkeys") and value != "volatile-ttl",
        _HITS,
        "The server evicts pages that longer prefixes need, or refuses writes when it is full.",
        "Set maxmemory-policy volatile-ttl.",
    ),
    (
        "maxmemory-samples",
        lambda value: int(value) < FEWEST_SAMPLES,
        _HITS,
        "The server evicts the beginnings of prefixes, which makes the rest unreachable.",
        f"Set maxmemory-samples {FEWEST_SAMPLES}.",
    ),
    (
        "save",
        bool,
        _PROMISE,
        "A restart brings removed pages back with their revision, until a host corrects it.",
        'Set save "".',
    ),
    (
        "appendonly",
        lambda value: value == "yes",
        _PROMISE,
        "A restart brings removed pages back, and each page is written to the disk.",
        "Set appendonly no.",
    ),
    (
        "io-threads",
        lambda value: int(value) > 1,
        _HITS,
        "Each thread spins on a core. On two cores throughput fell to a tenth.",
        "Set io-threads 1, unless the machine has four free cores or more.",
    ),
    (
        "cluster-require-full-coverage",
        lambda value: value == "yes",
        _HITS,
        "In a cluster, all nodes refuse everything while a part of the slots has no node.",
        "Set cluster-require-full-coverage no.",
    ),
    (
        "version",
        lambda value: int(value.partition(".")[0]) < OLDEST_VERSION,
        _HITS,
        "The server cannot extend the lives of pages that are used.",
        f"Run version {OLDEST_VERSION} or later.",
    ),
)


def findings_of(connection: RespConnection, place: str = "") -> list[EngineFinding]:
    """Returns the findings of one server. ``place`` is added to the settings' names.

    Raises a ``RemoteError`` if the server does not answer.
    """
    info, config = _info(connection), _config(connection)
    told = _settings_of_info(info) | config
    if told.get("cluster-enabled") != "yes":
        told.pop("cluster-require-full-coverage", None)
    found = [
        EngineFinding(kind, setting + place, told[setting], reason, remedy)
        for setting, is_wrong, kind, reason, remedy in _RULES
        if setting in told and is_wrong(told[setting])
    ]
    for command, right, answer in (("INFO", "+info", info), ("CONFIG", "+config|get", config)):
        if not answer:
            reason = "The server's settings cannot be checked."
            remedy = f"Give kvstore's user the right {right}, or check them yourself."
            found.append(
                EngineFinding(FindingKind.UNKNOWN, command + place, "forbidden", reason, remedy)
            )
    return found


def _settings_of_info(info: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings that INFO shows, under their names of CONFIG."""
    told = {
        "maxmemory": info.get("maxmemory"),
        "maxmemory-policy": info.get("maxmemory_policy"),
        "version": info.get("valkey_version", info.get("redis_version")),
    }
    if "aof_enabled" in info:
        told["appendonly"] = "yes" if info["aof_enabled"] == "1" else "no"
    return {setting: value for setting, value in told.items() if value is not None}


def _info(connection: RespConnection) -> dict[str, str]:
    """Returns what INFO says, and nothing if it is forbidden."""
    connection.send(encoded(b"INFO"))
    try:
        text = connection.short_value(MOST_INFO_BYTES) or b""
    except RemoteError:
        if connection.due or connection.is_broken:
            raise
        return {}
    lines = text.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _config(connection: RespConnection) -> dict[str, str]:
    """Returns the settings that the rules are about, and nothing if they are forbidden."""
    names = {setting for setting, *_ in _RULES} | {"cluster-enabled"}
    connection.send(encoded(b"CONFIG", b"GET", *sorted(name.encode() for name in names)))
    try:
        reply = connection.reply(2 * len(names) + 1)
    except RemoteError:
        if connection.due or connection.is_broken:
            raise
        return {}
    if not isinstance(reply, list) or not all(isinstance(each, bytes) for each in reply):
        raise connection.malformed(f"{reply!r} instead of settings")
    words = [each.decode() for each in reply if isinstance(each, bytes)]
    return dict(zip(words[::2], words[1::2], strict=True))
