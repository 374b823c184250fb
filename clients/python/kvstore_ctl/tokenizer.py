"""Token ids as text, by a model's own tokenizer."""

from collections.abc import Callable, Sequence
from pathlib import Path

from kvstore_ctl.text import printable

# Models without a tokenizer, such as the tiny ones of kvstore-worker: a token is a byte.
BYTES = "bytes"
FILE = "tokenizer.json"
BYTE_VALUES = 256


def decoder_of(source: str) -> Callable[[Sequence[int]], str]:
    """Returns what makes one line of text of token ids, which a terminal may have.

    ``source`` is a file of the package tokenizers, a folder with a ``tokenizer.json``, or
    ``bytes``. Raises ``ValueError`` where it cannot be loaded, or the package is not there.
    """
    if source == BYTES:
        return _bytes_as_text
    path = Path(source)
    path = path / FILE if path.is_dir() else path
    if not path.is_file():
        msg = f"--tokenizer {source}: no file {path}"
        raise ValueError(msg)
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415  # who decodes nothing need not have it
    except ImportError as error:
        msg = f"--tokenizer needs the package tokenizers ({error}): pip install tokenizers"
        raise ValueError(msg) from error
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # its library raises nothing more precise
        msg = f"--tokenizer {path}: {error}"
        raise ValueError(msg) from error
    return lambda ids: printable(tokenizer.decode(list(ids), skip_special_tokens=False))


def _bytes_as_text(ids: Sequence[int]) -> str:
    return printable(bytes(i for i in ids if i < BYTE_VALUES).decode(errors="replace"))
