"""Writes docs/permissions.md from the table of the permission tests.

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
For operators and auditors: which caller may make which call, and what it answers.
`tests/unit/rpc/test_permissions.py` and `tests/integration/test_frame_permissions.py` make every call below on a real server with two tenants. A new method or frame fails them until it is in the table.

[Tenants](tenants.md) says how callers are identified. The columns:

- **own**: the tenant that owns everything that the call names, with the lease's secret.
- **another's**: another tenant with all ids of the first one and its lease's secret. It gets the same bytes as for ids that never existed, and nothing changes.
- **under an own lease**: the same, with the caller's own lease and the rest another tenant's. Empty if the call names nothing else.
- **nobody**: no credential, token or certificate that the store knows.
- **admin**: an admin of another tenant. Leases belong to their tenant only, also for admins.

`OK` for another tenant means that the answer has the caller's own things.
Tests compare lists and statistics too: a tenant gets the same answer with and without another tenant.

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
    """Writes the page, and returns 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=PAGE, help="default: the committed page")
    out: Path = parser.parse_args().out
    out.write_text("".join((HEAD, *rows())), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
