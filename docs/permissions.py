"""Writes docs/permissions.md from the table that the permission tests call a server by.

Run it after a change of tests/support/stores/permission_table.py: `.venv/bin/python docs/permissions.py`.
The result is committed, and tests/static/test_generated_code.py keeps the two in step.
`--out FILE` writes another file instead, and leaves the tree alone.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from stores.permission_table import FRAMES, PERMISSIONS  # noqa: E402  # it is beside the tests

PAGE = ROOT / "docs" / "permissions.md"
HEAD = """\
# Permissions

Written by `docs/permissions.py` from `tests/support/stores/permission_table.py`: do not edit.
`tests/unit/rpc/test_permissions.py` and `tests/integration/test_frame_permissions.py` make every call below, on a real server with two tenants, and a method or frame that is added fails them until it stands here.

Who a caller is says [tenants.md](tenants.md). The columns:

- **own**: the tenant whose things the call names, a lease's secret included.
- **another's**: another tenant, that has all of the first one's ids and its lease's secret. It is told what it is told of ids that never were, to the byte but for the ids that it gave, and nothing changes.
- **under an own lease**: the same, where the lease is the caller's and the rest another tenant's. Empty: nothing else is named.
- **nobody**: no credential, token or certificate that the store knows.
- **admin**: an admin of another tenant. Leases are their tenant's alone, also for admins.

`OK` to another tenant means that it was answered of its own.
Lists and statistics are compared, too: a tenant is told the same whether another is there or not.

## Calls

| call | own | another's | under an own lease | nobody | admin | |
| --- | --- | --- | --- | --- | --- | --- |
"""
ATTACH = """
## Frames of the attach socket

| frame | own | another's | nobody | admin | |
| --- | --- | --- | --- | --- | --- |
"""


def rows() -> Iterator[str]:
    """Yields the page's lines."""
    for name, each in PERMISSIONS.items():
        cells = (each.own, each.other, each.under_own_lease, each.nobody, each.admin)
        yield _row(f"`{name.removeprefix('kvstore.v1.')}`", *map(_coded, cells), each.means)
    yield ATTACH
    for name, frame in FRAMES.items():
        answers = (frame.own, frame.other, frame.nobody, frame.admin)
        yield _row(f"`{name}`", *map(_coded, answers), frame.means)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


def _coded(reason: str) -> str:
    return f"`{reason}`" if reason.isupper() else reason


def main() -> int:
    """Writes the page, and exit 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=PAGE, help="default: the committed page")
    out: Path = parser.parse_args().out
    out.write_text("".join((HEAD, *rows())), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
