"""Seals of pages: a reader gets exactly the page that it asked for, or nothing."""

import mmap
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Event

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from xxhash import xxh3_64_intdigest

from kvstore.remote.secret import sealing
from kvstore.remote.secret.names import SHARD_COUNT, RemoteNames, RemotePage
from kvstore.remote.secret.sealing import (
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
from mutants.live import put_into_this_process
from mutants.remote import REMOTE_MUTANTS
from remote.remote_pages import OTHER_SECRET, SECRET, leaks, written_page

MUTANTS = {each.name: each for each in REMOTE_MUTANTS}
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
    """Returns the class by which a value is rejected, after checking what was written.

    It is nothing if the header was enough to reject it, and zeros otherwise.
    """
    for cuts in ([], [7]):
        target = bytearray(UNTOUCHED[: page.page_bytes])
        with pytest.raises(PageRejected) as raised:
            SEALER.open(page, memoryview(value), pieces_of(target, *cuts))
        is_deciphered = issubclass(raised.type, SealBroken | ChecksumWrong) and not cuts
        assert target == (bytes(page.page_bytes) if is_deciphered else UNTOUCHED)
    return raised.type


def pieces_of(target: bytearray, *cuts: int) -> list[memoryview]:
    """Returns memory in pieces."""
    view = memoryview(target)
    return [view[start:end] for start, end in pairwise([0, *cuts, len(target)])]


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
        "4b5652024ddd1aa22147e761f0cc3559f5eab2f8ec82e3ba0aed1a6e60b8"
        "d6dfea9a6fc68b5e8a658213f0f5e10ac272408502ea039b245adbafa5c4"
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
    key = SEALER._key(PAGE)
    masked = sealing._masked((CHECKSUM ^ 1).to_bytes(CHECKSUM_BYTES, "little"), key, nonce)
    value = struct.pack(f"<4s4s{NONCE_BYTES}s8s", MAGIC, SEALER.key_id, nonce, masked)
    value += AESGCM(key).encrypt(nonce, WRITTEN.content, SEALER._associated(PAGE, masked))
    assert rejection(value) is ChecksumWrong


@pytest.mark.parametrize("checksum", [CHECKSUM, None], ids=["known", "unknown"])
def test_a_write_between_the_checksum_and_the_seal_is_found(
    checksum: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's own memory is sealed, and a worker may write to it at that moment."""
    page = bytearray(WRITTEN.content)

    def digest(content: memoryview) -> int:
        found = xxh3_64_intdigest(content)
        page[5] ^= 1
        return found

    value = bytearray(PAGE.page_bytes + SEAL_BYTES)
    with monkeypatch.context() as patch:
        patch.setattr(sealing, "xxh3_64_intdigest", digest)
        SEALER.seal(PAGE, [memoryview(page)], checksum, memoryview(value))
    assert rejection(value) is ChecksumWrong


def test_writes_during_a_seal_make_no_other_page() -> None:
    """A reader gets bytes of one moment with their checksum, or nothing."""
    size = 1 << 18
    written = written_page(3, size)
    content, value = bytearray(written.content), memoryview(bytearray(size + SEAL_BYTES))
    ended = Event()

    def scribble() -> None:
        while not ended.is_set():
            for at in range(0, size, size // 16):
                content[at] ^= 1

    with ThreadPoolExecutor(1) as pool:
        scribbling = pool.submit(scribble)
        try:
            for _ in range(100):
                SEALER.seal(written.page, [memoryview(content)], None, value)
                target = bytearray(size)
                try:
                    checksum = SEALER.open(written.page, value, [memoryview(target)])
                except (ChecksumWrong, SealBroken):
                    assert target == bytes(size)
                else:
                    assert xxh3_64_intdigest(target) == checksum
        finally:
            ended.set()
        scribbling.result()


def test_a_page_without_a_checksum_gets_one() -> None:
    """The checksum is then that of the bytes that were sealed."""
    value = memoryview(bytearray(PAGE.page_bytes + SEAL_BYTES))
    SEALER.seal(PAGE, [memoryview(WRITTEN.content)], None, value)
    assert SEALER.open(PAGE, value, [memoryview(bytearray(PAGE.page_bytes))]) == CHECKSUM


def plaintext_that_failed_its_tag() -> None:
    """Opens a page whose tag is wrong, and checks that its memory shows nothing of it."""
    value = sealed()
    value[-1] ^= 1
    with mmap.mmap(-1, PAGE.page_bytes) as shared, memoryview(shared) as target:
        with pytest.raises(SealBroken):
            SEALER.open(PAGE, memoryview(value), [target])
        assert bytes(target) == bytes(PAGE.page_bytes), "plaintext without a tag is left"


def test_plaintext_that_failed_its_tag_stays_in_no_shared_memory() -> None:
    """A mapping that other processes have shows nothing of such a page after the call."""
    plaintext_that_failed_its_tag()


def test_plaintext_that_is_left_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test before fails then."""
    put_into_this_process(monkeypatch, MUTANTS["plaintext-left"])
    with pytest.raises(AssertionError, match="plaintext"):
        plaintext_that_failed_its_tag()


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
