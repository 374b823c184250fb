"""Varints: the numbers of protobuf's wire format."""

# Wire types.
VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5
# Bits of a number in each byte, and the most bytes of a number.
BITS, MOST_BYTES = 7, 10


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    """Returns the number that begins at a place, and the place after it.

    Raises IndexError if it does not end within ``data``, or has more bytes than any number.
    """
    value = 0
    for number in range(MOST_BYTES):
        byte = data[place + number]
        value |= (byte & 0x7F) << BITS * number
        if byte < 0x80:  # noqa: PLR2004  # the bit that says that more follow
            return value, place + number + 1
    raise IndexError


def varint_bytes(value: int) -> int:
    """Returns the least number of bytes of a number."""
    return max(-(-value.bit_length() // BITS), 1)
