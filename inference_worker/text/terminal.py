"""A model's text as a terminal may have it."""

from types import MappingProxyType
from typing import Final

# What begins a sequence that a terminal obeys, or is one: C0 without tab and newline, DEL, C1.
_CONTROLS: Final = MappingProxyType(
    {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}
)


def terminal_text(text: str) -> str:
    """Gives ``text`` with U+FFFD for each control character but tab and newline."""
    return text.translate(_CONTROLS)
