"""Writes docs/errors.md from the contract's reasons, the server's codes and the client's classes.

Run it after a change of an error: `.venv/bin/python docs/errors.py`.
The result is committed, and tests/static/test_generated_code.py keeps the two in step.
`--out FILE` writes another file instead, and leaves the tree alone.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kvstore.errors import KVStoreError
from kvstore_client import errors as client_errors
from kvstore_client.errors import StoreError, StoreRefused

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "errors.md"
CONTRACT = DOCS.parent / "proto" / "kvstore" / "v1" / "errors.proto"
REASON = re.compile(r"((?:^ *//.*\n)+)^ *ERROR_REASON_([A-Z_]+) = [1-9]\d*;", re.MULTILINE)
HEAD = """\
# Errors

Written by `docs/errors.py` from `proto/kvstore/v1/errors.proto`, `kvstore/errors.py` and `kvstore_client/errors.py`: do not edit.

On a request path every one of them is a miss: the engine computes what it did not get.
A call that is answered with one changed nothing.

On the wire an error is a `google.rpc.Status` with one `ErrorInfo`, whose domain is `kvstore`, and `RetryInfo` where the same call may succeed later.
The `ErrorInfo` names the reason, and has in its metadata, as text, the values that the message names.
The client raises `StoreRefused` of the reason's class, with `reason`, `metadata` and `retry_after_s`; `kvstore-ctl` prints the reason and ends with [a status](#exit-statuses).

## Reasons
"""
# By reason: whoever gets it does this.
ADVICE = {
    "INVALID_FIELD": "Correct the field that `field` names: it is a bug of the caller.",
    "LIMIT_EXCEEDED": "Ask for less; [limits.md](limits.md) has each limit and what sets it.",
    "CREDENTIAL_REQUIRED": "A worker attaches again by itself. For others: is the uid, token or certificate in the [tenants file](tenants.md), and was the file read (`tenants_not_read` in the log)?",
    "PERMISSION_DENIED": "Call as an admin: root, the server's user, or a tenant with `admin = true` ([permissions.md](permissions.md)).",
    "STALE_EPOCH": "Attach to the new epoch: the client does so by itself.",
    "LEASE_NOT_FOUND": "Grant a new lease: the client does so by itself.",
    "LEASE_EXPIRED": "Release what is held and grant a new lease; the client does. Where it comes often, ask for a longer [`ttl`](configuration.md#ttl).",
    "NOT_ATTACHED": "Attach under the lease first. From another host there is no attaching: such callers look, peek and administer.",
    "NAMESPACE_NOT_FOUND": "Open the namespace again: an operator deleted it, or it is another tenant's.",
    "LAYOUT_MISMATCH": "Two workers mean different models by one identity, or page them differently: set the same page size and dtype, or tell the models apart.",
    "PIN_NOT_FOUND": "Nothing is held under this id: match again.",
    "RESERVATION_NOT_FOUND": "Nothing is reserved under this id: reserve again.",
    "ID_REUSED": "Choose each id once: it is a bug of the caller.",
    "TOMBSTONED": "Choose a new id: this one was released before the call came.",
    "POOL_EXHAUSTED": "Compute without caching, or ask for fewer pages. Where it comes often the store is too small: [sizing.md](sizing.md).",
    "INSERT_EXCEEDS_RESERVATION": "Reserve what is to be inserted: it is a bug of the caller.",
    "PARENT_NOT_COVERED": "Insert under the pin or reservation that covers the pages above: it is a bug of the caller.",
    "PARENT_DETACHED": "Drop what was computed: the pages above it were removed, perhaps because they were bad.",
    "QUOTA_EXCEEDED": "`quota` names the bound. Ask less often, hold less, or have the [tenants file](tenants.md#the-tenants-file) allow more.",
    "STORE_DRAINING": "Go on without the store: the client tries again by itself.",
    "FEATURE_UNSUPPORTED": "Ask a newer server, or do without: `GetCapabilities` lists the features.",
    "PAGE_CORRUPT": "Ask again; the page is out of the index. Look for who writes where it should not: `page_corrupt` in the log, [failures.md](failures.md).",
    "NAMED_PIN_NOT_FOUND": "Nothing: it is not there.",
    "PREFIX_NOT_CACHED": "Have a worker compute the prefix first (`kvstore-worker warm`), or pin what is there.",
    "PEER_REFUSED": "`why` says it: often a container without the host's pids, the overflow uid, or CUDA MPS ([threat-model.md](threat-model.md)).",
    "INTERNAL": "A bug of the store: its log has more under the request id. Please report it.",
}
CLIENT = """
## Errors that the client raises by itself

| class | when |
| --- | --- |
"""
STATUSES = """
## Exit statuses

| program | status | when |
| --- | --- | --- |
| `kvstore-server` | 0 | it was told to stop and drained, or stopped after its grace |
| | 1 | it could not start: another server on the folder or the slab, an address that cannot be had, a device that is not there; or it could not end in time |
| | 2 | a setting is wrong, or a flag is none: the line names it |
| `kvstore-server config` | 0 | printed; for `check`: the settings can be used |
| | 2 | they cannot: the line says why |
| `kvstore-ctl` | 0 | done |
| | 1 | the store refused, with a reason of this page; or the question was answered with no ([ctl.md](ctl.md#of-every-command)) |
| | 2 | the command line is wrong, or a file that it names |
| | 3 | the store cannot be reached, or went away |
| | 130 | Ctrl-C ended it; `bench` and `replay` have deleted their namespace by then, and end so at SIGTERM (143) and SIGHUP (129) too |
| `kvstore-worker` | 0 | done |
| | 1 | something failed that the command is there to find or to do: a check, an answer, a prompt that was not warmed |
| | 2 | the command line is wrong |

A second SIGTERM or SIGINT ends each of them at once, by the signal.
"""


class Reason(NamedTuple):
    """One reason of the contract, taken out of its comment."""

    name: str
    code: str
    meaning: str
    metadata: dict[str, str]
    retry: bool


def reasons() -> Iterator[Reason]:
    """Yields the contract's reasons; raises ValueError for a comment of another form."""
    for comment, name in REASON.findall(CONTRACT.read_text(encoding="utf-8")):
        text = " ".join(line.strip().removeprefix("//").strip() for line in comment.splitlines())
        found = re.fullmatch(r"([A-Z_]+)(, with RetryInfo[^.]*)?\. (.*?)(?: (\{.*\}))?", text)
        if found is None:
            raise ValueError(f"{name}: {text}")
        code, retry, meaning, metadata = found.groups()
        yield Reason(name, code, meaning, json.loads(metadata or "{}"), retry is not None)


def reason_part(reason: Reason) -> str:
    """Returns the section of one reason."""
    raised = StoreRefused.by_reason[reason.name]
    rows = [f"- `{reason.code}`; the client raises `{raised.__name__}`"]
    if reason.metadata:
        values = ", ".join(f"`{key}` (as in `{value}`)" for key, value in reason.metadata.items())
        rows.append(f"- metadata: {values}")
    rows.append(f"- retry: {_retry(reason)}")
    rows.append(f"- what to do: {ADVICE[reason.name]}")
    return f"\n### {reason.name}\n\n{reason.meaning}\n\n" + "\n".join(rows) + "\n"


def _retry(reason: Reason) -> str:
    server = {each.reason(): each for each in KVStoreError.__subclasses__()}.get(reason.name)
    if server is not None and server.retry_after_s is not None:
        return f"after {server.retry_after_s:g} s, as `RetryInfo` says"
    return "when `RetryInfo` says, where it is there" if reason.retry else "not the same call"


def client_part() -> Iterator[str]:
    """Yields a row for each error of the client that is no reason of the wire."""
    classes = [each for each in vars(client_errors).values() if isinstance(each, type)]
    for each in classes:
        of_wire = issubclass(each, StoreRefused) and each is not StoreRefused
        if (
            issubclass(each, Exception)
            and each.__module__ == client_errors.__name__
            and not of_wire
        ):
            above = "" if each is StoreError else f", a `{each.__mro__[1].__name__}`"
            summary = (each.__doc__ or "").strip().splitlines()[0]
            yield f"| `{each.__name__}`{above} | {summary} |\n"


def page() -> str:
    """Returns the page's text; raises ValueError where a reason has no advice, or too many have."""
    found = list(reasons())
    if {each.name for each in found} != ADVICE.keys():
        raise ValueError(
            f"advice and reasons differ: {ADVICE.keys() ^ {each.name for each in found}}"
        )
    text = "".join((HEAD, *map(reason_part, found), CLIENT, *client_part(), STATUSES))
    return text.replace("``", "`")


def main() -> int:
    """Writes the page, and exit 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=PAGE, help="default: the committed page")
    out: Path = parser.parse_args().out
    out.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
