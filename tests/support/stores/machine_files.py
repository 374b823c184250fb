"""The files of a machine, by which its memory and processors are found out."""

from pathlib import Path


def write_files(root: Path, files: dict[str, str]) -> Path:
    """Writes files below ``root``, and returns it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root
