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

For operators and authors of clients: look up an error or an exit status here, and what to do about it.
On a request path every error is a miss: the engine computes the tokens itself. A call that fails has changed nothing.

On the wire an error is a `google.rpc.Status` with one `ErrorInfo` of domain `kvstore`, and with `RetryInfo` if the same call may succeed later.
The `ErrorInfo` has the reason, and the values of the message as text in its metadata.
The client raises a subclass of `StoreRefused` for each reason, with `reason`, `metadata` and `retry_after_s`. `kvstore-ctl` prints the reason and ends with [a status](#exit-statuses).

## Reasons
"""
# By reason: the caller's next step.
ADVICE = {
    "INVALID_FIELD": "Correct the field that `field` names; the caller has a bug.",
    "LIMIT_EXCEEDED": "Ask for less; [limits.md](limits.md) has each limit and what sets it.",
    "CREDENTIAL_REQUIRED": "A worker attaches again by itself. Other callers must be in the [tenants file](tenants.md) with their uid, token or certificate, and the server must have read it (see `tenants_not_read` in its log).",
    "PERMISSION_DENIED": "Call as an admin: root, the server's user, or a tenant with `admin = true` ([permissions.md](permissions.md)).",
    "STALE_EPOCH": "Attach to the new epoch: the client does so by itself.",
    "LEASE_NOT_FOUND": "Grant a new lease: the client does so by itself.",
    "LEASE_EXPIRED": "Release all holds and grant a new lease: the client does so by itself. If it happens often, set a longer [`ttl`](configuration.md#ttl).",
    "NOT_ATTACHED": "Attach under the lease first. Callers on another host cannot attach; they may read statistics, peek and administer.",
    "NAMESPACE_NOT_FOUND": "Open the namespace again: an operator deleted it, or it is another tenant's.",
    "LAYOUT_MISMATCH": "Two workers use one identity for different models or layouts: set the same page size and dtype, or give the models different identities.",
    "PIN_NOT_FOUND": "No pin has this id: match again.",
    "RESERVATION_NOT_FOUND": "No reservation has this id: reserve again.",
    "ID_REUSED": "Choose each id once; the caller has a bug.",
    "TOMBSTONED": "Choose a new id: this one was released before the call arrived.",
    "POOL_EXHAUSTED": "Compute without caching, or ask for fewer pages. If it happens often, the store is too small: [sizing.md](sizing.md).",
    "INSERT_EXCEEDS_RESERVATION": "Reserve the pages before you insert them; the caller has a bug.",
    "PARENT_NOT_COVERED": "Insert under the pin or reservation that covers the pages above; the caller has a bug.",
    "PARENT_DETACHED": "Drop the result: the pages above it were removed, perhaps because they were corrupt.",
    "QUOTA_EXCEEDED": "`quota` names the bound. Call less often, hold less, or raise the quota in the [tenants file](tenants.md#the-tenants-file).",
    "STORE_DRAINING": "Continue without the store: the client tries again by itself.",
    "FEATURE_UNSUPPORTED": "Use a newer server, or do without the feature: `GetCapabilities` lists them.",
    "PAGE_CORRUPT": "Call again; the page has left the index. Find the worker that overwrote it: `page_corrupt` in the log, [failures.md](failures.md).",
    "NAMED_PIN_NOT_FOUND": "Nothing to do: no pin has this name.",
    "PREFIX_NOT_CACHED": "Compute the prefix first (`kvstore-worker warm`), or pin its cached part.",
    "PEER_REFUSED": "`why` has the cause: often a container without the host's pids, the overflow uid, or CUDA MPS ([threat-model.md](threat-model.md)).",
    "INTERNAL": "The store has a bug: its log has more under the request id. Please report it.",
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
| `kvstore-server` | 0 | it got a signal to stop and drained, or stopped after its grace; or, at SIGTERM with a holder, left its memory to the next server |
| | 1 | it could not start: another server has the folder or the slab, an address is in use, a device is missing; `--replace` found a server that cannot be replaced; or it could not end in time |
| | 2 | a setting or a flag is wrong; a line names it |
| `kvstore-holder` | 0 | its owner ended it, or nobody owned for the grace |
| | 1 | it could not start: another holder has the folder, others may open it, or a limit is too low; a line says why |
| | 2 | the command line is wrong |
| `kvstore-server config` | 0 | printed; for `check`: the settings can be used |
| | 2 | the settings cannot be used; a line says why |
| `kvstore-ctl` | 0 | done |
| | 1 | the store refused, with a reason of this page; or the answer is no ([ctl.md](ctl.md#exit-statuses-and-common-options)) |
| | 2 | the command line, or a file that it names, is wrong |
| | 3 | the store cannot be reached, or has ended |
| | 130 | Ctrl-C ended it; `bench` and `replay` delete their namespace first, also at SIGTERM (143) and SIGHUP (129) |
| `kvstore-worker` | 0 | done |
| | 1 | a check, an answer or a prompt to warm failed |
| | 2 | the command line is wrong |

A second SIGTERM or SIGINT ends each of them at once, by the signal.
"""


class Reason(NamedTuple):
    """One reason of the contract, parsed from its comment."""

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
    """Yields a row for each error of the client that is not a reason of the contract."""
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
    """Returns the page's text. Raises ValueError unless exactly the contract's reasons have advice."""
    found = list(reasons())
    if {each.name for each in found} != ADVICE.keys():
        raise ValueError(
            f"advice and reasons differ: {ADVICE.keys() ^ {each.name for each in found}}"
        )
    text = "".join((HEAD, *map(reason_part, found), CLIENT, *client_part(), STATUSES))
    return text.replace("``", "`")


def main() -> int:
    """Writes the page, and returns 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=PAGE, help="default: the committed page")
    out: Path = parser.parse_args().out
    out.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
