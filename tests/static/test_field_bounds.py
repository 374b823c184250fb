"""docs/limits.md names the bound of every field that a client can send."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvstore.v1 import attach_pb2, lease_pb2, named_pin_pb2, prefix_cache_pb2, store_pb2

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"
FILES = (lease_pb2, prefix_cache_pb2, named_pin_pb2, store_pb2)


def fields(message: Any) -> Iterator[str]:  # noqa: ANN401 - stubs know two of descriptors
    """Yields the fields of a message of ours and of all that are within it."""
    for field in message.fields:
        yield f"{message.name}.{field.name}"
        inner = field.message_type
        if inner is not None and inner.file.package == message.file.package:
            yield from fields(inner)


def test_every_field_has_a_bound() -> None:
    """A field that is new in a request or a frame has to be classified in the table."""
    requests = [
        method.input_type
        for file in FILES
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]
    sent = {each for message in requests for each in fields(message)}
    sent |= set(fields(attach_pb2.ClientFrame.DESCRIPTOR))
    sent |= set(fields(attach_pb2.LaneCall.DESCRIPTOR))
    rows = re.findall(r"^\| (`\w+\.\w+`.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    listed = [each for row in rows for each in re.findall(r"`(\w+\.\w+)`", row)]
    assert sorted(listed) == sorted(sent)


def test_every_limit_is_named() -> None:
    """Each limit and each quota of the contract stands on the page."""
    text = PAGE.read_text(encoding="utf-8")
    names = [*store_pb2.Limits.DESCRIPTOR.fields, *store_pb2.Quotas.DESCRIPTOR.fields]
    assert [each.name for each in names if f"`{each.name}`" not in text] == []
