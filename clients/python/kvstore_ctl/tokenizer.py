"""Token ids as text, decoded by a model's own tokenizer."""

from collections.abc import Callable, Sequence
from pathlib import Path

from kvstore_ctl.terminal_text import printable

# For models whose tokens are bytes, such as the tiny ones of kvstore-worker.
BYTES = "bytes"
FILE = "tokenizer.json"
BYTE_VALUES = 256


def decoder_of(source: str) -> Callable[[Sequence[int]], str]:
    """Returns a function that decodes token ids to one printable line of text.

    ``source`` is a file of the package tokenizers, a folder with a ``tokenizer.json``, or
    ``bytes``. Raises ``ValueError`` if it cannot be loaded, or the package is not installed.
    """
    if source == BYTES:
        return _bytes_as_text
    path = Path(source)
    path = path / FILE if path.is_dir() else path
    if not path.is_file():
        raise ValueError(f"--tokenizer {source}: no file {path}")
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415  # optional: only decoding needs it
    except ImportError as error:
        raise ValueError(
            f"--tokenizer needs the package tokenizers ({error}): pip install tokenizers"
        ) from error
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more precise
        raise ValueError(f"--tokenizer {path}: {error}") from error
    return lambda ids: printable(tokenizer.decode(list(ids), skip_special_tokens=False))


def _bytes_as_text(ids: Sequence[int]) -> str:
    return printable(bytes(i for i in ids if i < BYTE_VALUES).decode(errors="replace"))
