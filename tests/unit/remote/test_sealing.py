"""Seals of pages: a reader gets exactly the page that it asked for, or nothing."""

import mmap
import os
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from xxhash import xxh3_64_intdigest

from kvstore.remote.names import SHARD_COUNT, RemoteNames, RemotePage
from kvstore.remote.sealing import (
    CHECKSUM_BYTES,
    KEY_ID_BYTES,
    MAGIC,
    NONCE_BYTES,
    SEAL_BYTES,
    ChecksumWrong,
    ForeignSecret,
    PageRejected,
    PageSealer,
    SealBroken,
    UnknownFormat,
)
from remote.remote_pages import OTHER_SECRET, SECRET, leaks, written_page

NAMES = RemoteNames(SECRET)
SEALER = PageSealer(SECRET)
WRITTEN = written_page(1)
PAGE = WRITTEN.page
CHECKSUM = xxh3_64_intdigest(WRITTEN.content)
UNTOUCHED = b"\xee" * PAGE.page_bytes


def sealed(page: RemotePage = PAGE, content: bytes = WRITTEN.content) -> bytearray:
    """Returns a page's value."""
    value = bytearray(page.page_bytes + SEAL_BYTES)
    SEALER.seal(page, [memoryview(content)], xxh3_64_intdigest(content), memoryview(value))
    return value


def rejection(value: bytes | bytearray, page: RemotePage = PAGE) -> type[PageRejected]:
    """Returns the class by which a value is rejected, after checking that nothing was written."""
    target = bytearray(b"\xee" * page.page_bytes)
    with pytest.raises(PageRejected) as raised:
        SEALER.open(page, memoryview(value), [memoryview(target)])
    assert target == b"\xee" * page.page_bytes
    return raised.type


def test_a_page_comes_back_in_other_pieces() -> None:
    """Writer and reader may have a page in different pieces; the checksum is the writer's."""
    cut = PAGE.page_bytes // 3
    source = memoryview(WRITTEN.content)
    value = bytearray(PAGE.page_bytes + SEAL_BYTES)
    SEALER.seal(PAGE, [source[:cut], source[cut:]], CHECKSUM, memoryview(value))
    target = bytearray(PAGE.page_bytes)
    view = memoryview(target)
    assert SEALER.open(PAGE, memoryview(value), [view[:7], view[7:]]) == CHECKSUM
    assert target == WRITTEN.content


def test_the_format_is_that_of_every_host() -> None:
    """A value that was written down here once is opened: the format may not change."""
    written = written_page(2, 16)
    value = bytes.fromhex(
        "4b5652014ddd1aa25fd69f2559aff6624d6e8ddef755ad05177294dd7957"
        "69b01d2716823f3820f7fae36a58a3b4c6b6039a849bee6a9fe4a8cdb2d5"
    )
    target = bytearray(16)
    checksum = SEALER.open(written.page, memoryview(value), [memoryview(target)])
    assert (target, checksum) == (written.content, xxh3_64_intdigest(written.content))


@pytest.mark.parametrize(
    "change",
    [
        {"namespace_digest": bytes(32)},
        {"shard": (PAGE.shard + 1) % SHARD_COUNT},
        {"revision": bytes(16)},
        {"page_digest": bytes(32)},
        {"valid_tokens": PAGE.valid_tokens - 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_value_is_good_for_one_question_only(change: dict[str, object]) -> None:
    """A reader that asks for anything else than the writer wrote gets nothing."""
    asked = PAGE._replace(**change)  # type: ignore[arg-type]
    assert rejection(sealed(), asked) is SealBroken


def test_every_byte_of_a_value_is_covered() -> None:
    """A flipped bit anywhere is found, from the magic to the tag."""
    for at in range(PAGE.page_bytes + SEAL_BYTES):
        if 40 < at < PAGE.page_bytes - 40 and at % 97:
            continue
        value = sealed()
        value[at] ^= 1 << (at % 8)
        expected = UnknownFormat if at < len(MAGIC) else SealBroken
        if len(MAGIC) <= at < len(MAGIC) + KEY_ID_BYTES:
            expected = ForeignSecret
        assert rejection(value) is expected, at


@pytest.mark.parametrize("length", [0, 1, SEAL_BYTES, PAGE.page_bytes // 2])
def test_a_shortened_value_is_of_an_unknown_format(length: int) -> None:
    """A value of another length is not even opened."""
    assert rejection(sealed()[:length]) is UnknownFormat
    assert rejection(sealed() + bytes(length + 1)) is UnknownFormat


def test_a_value_under_another_secret_is_left_to_its_owners() -> None:
    """It is told from a spoiled one, so nobody deletes what is good for others."""
    value = memoryview(bytearray(PAGE.page_bytes + SEAL_BYTES))
    other = PageSealer(OTHER_SECRET)
    other.seal(PAGE, [memoryview(WRITTEN.content)], CHECKSUM, value)
    assert rejection(bytes(value)) is ForeignSecret
    assert not ForeignSecret.is_spoiled
    assert not UnknownFormat.is_spoiled
    assert SealBroken.is_spoiled
    assert ChecksumWrong.is_spoiled


def test_a_page_that_changed_is_not_sealed() -> None:
    """A worker that scribbles after its checksum was taken makes no authenticated page."""
    changed = bytearray(WRITTEN.content)
    changed[5] ^= 1
    with pytest.raises(ChecksumWrong):
        SEALER.seal(PAGE, [memoryview(changed)], CHECKSUM, memoryview(sealed()))


def test_the_writer_s_checksum_is_compared_after_the_seal() -> None:
    """A host whose memory fails between its check and its seal is found by every reader."""
    nonce = os.urandom(NONCE_BYTES)
    plain = WRITTEN.content + (CHECKSUM ^ 1).to_bytes(CHECKSUM_BYTES, "little")
    cipher = AESGCM(SEALER._key(PAGE))
    value = struct.pack(f"<4s4s{NONCE_BYTES}s", MAGIC, SEALER.key_id, nonce)
    value += cipher.encrypt(nonce, plain, SEALER._associated(PAGE))
    assert rejection(value) is ChecksumWrong


def test_a_page_without_a_checksum_gets_one() -> None:
    """The checksum is then that of the bytes that were sealed."""
    value = memoryview(bytearray(PAGE.page_bytes + SEAL_BYTES))
    SEALER.seal(PAGE, [memoryview(WRITTEN.content)], None, value)
    assert SEALER.open(PAGE, value, [memoryview(bytearray(PAGE.page_bytes))]) == CHECKSUM


def test_plaintext_that_failed_its_tag_is_in_no_shared_memory() -> None:
    """A mapping that other processes have shows nothing of a page whose tag is wrong."""
    value = sealed()
    value[-1] ^= 1
    with mmap.mmap(-1, PAGE.page_bytes) as shared, memoryview(shared) as target:
        with pytest.raises(SealBroken):
            SEALER.open(PAGE, memoryview(value), [target])
        assert bytes(target) == bytes(PAGE.page_bytes)


def test_a_value_shows_nothing_of_its_page() -> None:
    """No eight bytes of tokens, digests, revision, checksum, content or secret are in a value."""
    shown = bytes(sealed())
    checksum = CHECKSUM.to_bytes(CHECKSUM_BYTES, "little")
    hidden = (
        *(WRITTEN.tokens, WRITTEN.content, PAGE.namespace_digest, PAGE.page_digest),
        *(PAGE.revision, SECRET, checksum, checksum[::-1], NAMES.page(PAGE)),
    )
    assert leaks(shown, *hidden) == []


def test_a_page_sealed_twice_has_two_values() -> None:
    """Each seal has a nonce of its own, so equal pages do not show that they are equal."""
    one, other = sealed(), sealed()
    assert not leaks(bytes(one[len(MAGIC) + KEY_ID_BYTES :]), bytes(other[8:]))


def test_each_page_and_revision_has_a_key_of_its_own() -> None:
    """A nonce can repeat harmfully only among rewrites of one page."""
    pages = [PAGE, PAGE._replace(revision=bytes(16)), PAGE._replace(page_digest=bytes(32))]
    assert len({SEALER._key(each) for each in pages}) == len(pages)


def test_threads_seal_and_open_beside_each_other() -> None:
    """Each thread has private memory of its own, also for pages of different sizes."""

    def round_trip(seed: int) -> bool:
        written = written_page(seed, 1000 + 500 * (seed % 7))
        value = sealed(written.page, written.content)
        target = bytearray(written.page.page_bytes)
        SEALER.open(written.page, memoryview(value), [memoryview(target)])
        return target == written.content

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(round_trip, range(200)))


def test_pieces_of_another_size_are_a_caller_s_mistake() -> None:
    """Neither a seal nor an opening covers a part of a page."""
    short = memoryview(bytearray(PAGE.page_bytes - 1))
    with pytest.raises(ValueError, match="pieces"):
        SEALER.seal(PAGE, [short], None, memoryview(sealed()))
    with pytest.raises(ValueError, match="pieces"):
        SEALER.open(PAGE, memoryview(sealed()), [short])
