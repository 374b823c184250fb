"""Messages of the store as plain values for JSON."""

from collections.abc import Mapping

from google.protobuf import duration_pb2
from google.protobuf.message import Message

NANOSECONDS = 1e-9


def plain(message: Message) -> dict[str, object]:
    """Returns all fields of a message by their names in the contract.

    Bytes are hexadecimal, durations are seconds, and enum values are names. An absent message is
    None, or left out if it is one of a ``oneof``.
    """
    fields: dict[str, object] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        enum = field.enum_type
        names = {each.number: each.name for each in enum.values} if enum is not None else {}
        if field.is_repeated:
            fields[field.name] = [_value(each, names) for each in value]
        elif field.has_presence and not message.HasField(field.name):
            if field.containing_oneof is None:
                fields[field.name] = None
        else:
            fields[field.name] = _value(value, names)
    return fields


def _value(value: object, names: Mapping[int, str]) -> object:
    match value:
        case duration_pb2.Duration():
            return value.seconds + value.nanos * NANOSECONDS
        case Message():
            return plain(value)
        case bytes():
            return value.hex()
        case int():
            return names.get(value, value)
        case _:
            return value
