"""Seals under generated pages, questions and changes."""

from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from kvstore.remote.secret.names import SHARD_COUNT, RemotePage
from kvstore.remote.secret.sealing import SEAL_BYTES, PageRejected, PageSealer
from remote.remote_pages import SECRET

SEALER = PageSealer(SECRET)
digests = st.binary(min_size=32, max_size=32)


@st.composite
def pages(draw: st.DrawFn) -> tuple[RemotePage, bytes]:
    """Returns a page and its content."""
    content = draw(st.binary(min_size=1, max_size=600))
    page = RemotePage(
        namespace_digest=draw(digests),
        shard=draw(st.integers(0, SHARD_COUNT - 1)),
        revision=draw(st.binary(max_size=32)),
        page_digest=draw(digests),
        valid_tokens=draw(st.integers(1, 2**32 - 1)),
        page_bytes=len(content),
    )
    return page, content


def seal(page: RemotePage, content: bytes) -> bytearray:
    """Returns a page's value."""
    value = bytearray(len(content) + SEAL_BYTES)
    SEALER.seal(page, [memoryview(content)], xxh3_64_intdigest(content), memoryview(value))
    return value


@given(pages(), st.data())
def test_any_page_comes_back_whole(written: tuple[RemotePage, bytes], data: st.DataObject) -> None:
    """Content and checksum are the writer's, however the reader cuts its memory."""
    page, content = written
    target = bytearray(len(content))
    cut = data.draw(st.integers(0, len(content)))
    pieces = [memoryview(target)[:cut], memoryview(target)[cut:]]
    checksum = SEALER.open(page, memoryview(seal(page, content)), pieces)
    assert (bytes(target), checksum) == (content, xxh3_64_intdigest(content))


@given(pages(), pages())
def test_a_value_answers_its_own_page_alone(
    written: tuple[RemotePage, bytes], asked: tuple[RemotePage, bytes]
) -> None:
    """A reader with another question is refused, and its memory stays as it was."""
    other = asked[0]._replace(page_bytes=written[0].page_bytes)
    if other == written[0]:
        return
    target = bytearray(other.page_bytes)
    try:
        SEALER.open(other, memoryview(seal(*written)), [memoryview(target)])
    except PageRejected:
        assert target == bytes(other.page_bytes)
    else:
        raise AssertionError(f"{other} was answered by {written[0]}")


@given(pages(), st.data())
def test_any_change_of_a_value_is_found(
    written: tuple[RemotePage, bytes], data: st.DataObject
) -> None:
    """Bits flipped anywhere, and bytes cut or added, give a rejection."""
    page, content = written
    value = seal(page, content)
    at = data.draw(st.integers(0, len(value) - 1))
    changed = data.draw(
        st.sampled_from([value[:at], value + value[: at + 1], bytearray(flipped(value, at))])
    )
    target = bytearray(len(content))
    try:
        SEALER.open(page, memoryview(changed), [memoryview(target)])
    except PageRejected:
        assert target == bytes(len(content))
    else:
        raise AssertionError(f"the change at {at} was not found")


def flipped(value: bytearray, at: int) -> bytes:
    """Returns a value with one bit flipped."""
    return bytes([*value[:at], value[at] ^ (1 << at % 8), *value[at + 1 :]])
