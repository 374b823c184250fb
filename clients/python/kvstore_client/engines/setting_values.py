"""Settings of a connector as an operator's JSON has them: checked, and with clear errors."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, TypeVar

# Bytes of a digest, and the longest name, that a store takes by default.
DIGEST_BYTES: Final = range(16, 65)
LONGEST_NAME: Final = 256
LONGEST_LOOKUP_TIMEOUT: Final = 60.0

T = TypeVar("T")


def read_settings(settings: type[T], extra: Mapping[str, object], place: str) -> T:
    """Returns an instance of a dataclass from a mapping; ``place`` names the mapping in errors.

    Raises ``ValueError`` for an unknown key, with the known ones, for a value of another type, and
    as the dataclass itself does.
    """
    known = {each.name: each.type for each in fields(settings)}  # type: ignore[arg-type]
    unknown = sorted(set(extra) - set(known))
    if unknown:
        raise ValueError(
            f"{place} has {', '.join(unknown)}, which kvstore does not "
            f"know; it knows {', '.join(sorted(known))}"
        )
    return settings(
        **{name: _checked(name, each, known[name], place) for name, each in extra.items()}
    )


def require_lookup_timeout(seconds: float) -> None:
    """Raises ``ValueError`` for a time that is no bound of a request's wait for the store."""
    if not 0 < seconds <= LONGEST_LOOKUP_TIMEOUT:
        raise ValueError(
            f"lookup_timeout is {seconds}: set more than 0 and at most "
            f"{LONGEST_LOOKUP_TIMEOUT:g} seconds"
        )


def require_share(name: str, share: float) -> None:
    """Raises ``ValueError`` for a number that is no share of a whole."""
    if not 0 <= share <= 1:
        raise ValueError(f"{name} is {share}: set 0 to 1")


def require_name(name: str, text: str) -> None:
    """Raises ``ValueError`` for a name that is longer than a store takes."""
    if len(text.encode()) > LONGEST_NAME:
        raise ValueError(f"{name} has at most {LONGEST_NAME} bytes")


def require_digest(digest: str, place: str) -> None:
    """Raises ``ValueError`` for text that is no digest in hexadecimal digits."""
    try:
        length = len(bytes.fromhex(digest))
    except ValueError:
        length = 0
    if length not in DIGEST_BYTES:
        raise ValueError(
            f"{place} has {DIGEST_BYTES.start} to {DIGEST_BYTES.stop - 1} bytes in "
            f"hexadecimal digits, such as sha256sum prints, not {digest!r}"
        )


def cut_name(text: str, most: int = LONGEST_NAME) -> str:
    """Returns the first whole characters of a text that fit into ``most`` bytes."""
    return text.encode()[:most].decode(errors="ignore")


def _checked(name: str, value: object, expected: object, place: str) -> Any:  # noqa: ANN401  # its field's type
    """Returns a value of the field's type; an integer may also be seconds or a share."""
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, expected):  # type: ignore[arg-type]  # a class, or a union of them
        shown = getattr(expected, "__name__", str(expected))
        raise ValueError(f"{name} in {place} is {value!r}: set a {shown}")  # noqa: TRY004  # a setting's value, not a call's argument
    return value
