"""The reasons why a server cannot go on with what another one left."""

import json
from collections.abc import Mapping


class CleanStart(Exception):
    """A server cannot go on with what it inherits; the message is the reason."""


def settings_bytes(settings: Mapping[str, str]) -> bytes:
    """Returns the bytes of settings, the same for equal ones."""
    return json.dumps(dict(settings), sort_keys=True, separators=(",", ":")).encode()


def require_equal(written: bytes, settings: Mapping[str, str]) -> None:
    """Raises CleanStart unless the server before had the same settings."""
    try:
        before = json.loads(written)
    except ValueError:
        before = {}
    names = sorted(settings.keys() | before.keys())
    changed = [each for each in names if settings.get(each) != before.get(each)]
    if changed:
        raise CleanStart(f"these settings changed: {', '.join(changed)}")
