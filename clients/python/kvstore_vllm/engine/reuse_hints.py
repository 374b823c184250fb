"""Hints of requests about the reuse of their pages, from vLLM's ``kv_transfer_params``."""

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from kvstore_client import ReuseHint

_logger = logging.getLogger(__name__)

# The key of ``kv_transfer_params`` that has the hint.
KEY: Final = "kvstore"
FIELDS: Final = frozenset({"expected_reuse", "horizon_seconds", "priority"})
# About 31 years, which the protocol's milliseconds can have.
LONGEST_HORIZON: Final = 1e9
INT32: Final = range(-(1 << 31), 1 << 31)


class ReuseHints:
    """Reads the hints of requests. Ignores and counts a malformed one, and logs the first.

    One thread uses it.
    """

    def __init__(self, counts: "Counter[str]") -> None:
        self._counts = counts
        self._logged = False

    def read(self, request: Any) -> ReuseHint | None:  # noqa: ANN401  # a Request
        """Returns a request's hint; None if it has none that is well formed."""
        params = getattr(request, "kv_transfer_params", None)
        if not isinstance(params, Mapping) or params.get(KEY) is None:
            return None
        try:
            return parse_hint(params[KEY])
        except ValueError as error:
            self._counts["ignored_hints"] += 1
            if not self._logged:
                self._logged = True
                _logger.warning("hint_ignored", extra={"reason": str(error)})
            return None


def parse_hint(found: object) -> ReuseHint:
    """Returns a hint in JSON's form as the client's; raises ``ValueError`` for any other."""
    if not isinstance(found, Mapping):
        raise ValueError(f"kv_transfer_params.{KEY} is {_shown(found)}: set an object")  # noqa: TRY004  # a user's value
    unknown = sorted(map(str, set(found) - FIELDS))
    if unknown:
        known = ", ".join(sorted(FIELDS))
        raise ValueError(f"kv_transfer_params.{KEY} has {_shown(unknown)}: set only {known}")
    hint = ReuseHint(
        found.get("expected_reuse"),
        _seconds(found.get("horizon_seconds")),
        _priority(found.get("priority")),
    )
    if hint.expected_reuse is not None and not isinstance(hint.expected_reuse, str):
        raise ValueError(f"expected_reuse is {_shown(hint.expected_reuse)}: set a string")
    hint.message()
    return hint


def _seconds(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"horizon_seconds is {_shown(value)}: set a number")  # noqa: TRY004
    if not 0 < value <= LONGEST_HORIZON:
        raise ValueError(f"horizon_seconds is {_shown(value)}: set more than 0, at most 1e9")
    return float(value)


def _priority(value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value not in INT32:
        raise ValueError(f"priority is {_shown(value)}: set an integer of 32 bits")
    return value


def _shown(value: object) -> str:
    """Returns the beginning of a user's value, for an error."""
    return repr(value)[:80]
