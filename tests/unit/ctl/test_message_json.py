"""Messages as plain values."""

import json
from datetime import timedelta

from kvstore.v1 import lease_pb2, store_pb2, types_pb2
from kvstore_ctl.message_json import plain


def test_every_field_is_there_by_its_name() -> None:
    """Unset fields show their defaults, so that readers need no defaults of their own."""
    assert set(plain(lease_pb2.LeaseInfo())) == set(lease_pb2.LeaseInfo.DESCRIPTOR.fields_by_name)


def test_values_are_what_json_has() -> None:
    """Bytes are hexadecimal, durations are seconds, enums are names and lists are lists."""
    lease = lease_pb2.LeaseInfo(
        lease_id=b"\x0f\xa0",
        state=lease_pb2.LeaseInfo.STATE_EXPIRED,
        age=timedelta(seconds=1, milliseconds=500),
        processes=[{"pid": 7, "connected": True}],
        pin_count=1 << 63,
    )
    values = plain(lease)
    assert (values["lease_id"], values["state"], values["age"]) == ("0fa0", "STATE_EXPIRED", 1.5)
    assert values["processes"] == [
        {"pid": 7, "uid": 0, "connected": True, "mapped_extent_count": 0}
    ]
    assert json.loads(json.dumps(values))["pin_count"] == 1 << 63


def test_what_is_absent_is_none_or_left_out() -> None:
    """An absent message is None. Of a oneof's fields only the set one is shown."""
    assert plain(lease_pb2.LeaseInfo())["oldest_hold_age"] is None
    layout = plain(types_pb2.PageLayout(opaque={"fingerprint": b"\1"}))
    assert layout["opaque"] == {"fingerprint": "01", "divides_by_token": False}
    assert "paged" not in layout


def test_an_enum_value_of_a_later_version_is_its_number() -> None:
    """An enum value without a name here is shown as its number."""
    message = store_pb2.ArenaStats.FromString(b"\x18\x63")
    assert plain(message)["tier"] == 99
