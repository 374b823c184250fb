"""A namespace whose pages are in a device's memory, on scripted sockets."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import cast

import grpc
import pytest

from device.card import Card, ClientCuda
from kvstore.v1 import attach_pb2, prefix_cache_pb2, types_pb2
from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore_client import (
    Client,
    ClientConfig,
    GroupWindow,
    Namespace,
    PageRef,
    Prefetched,
    errors,
)
from kvstore_client.calls.deadlines import StoreBudget
from kvstore_client.lifecycle.store_connector import Connector
from kvstore_client.memory.cuda import mapped_memory as cuda_memory
from kvstore_client.namespace import PREFETCH
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.testing import wait_until
from kvstore_client.values.packed_tokens import pack_tokens
from wire.scripted_session import (
    ACKNOWLEDGED,
    BOUND,
    CAPABILITIES,
    EXTENT_ID,
    GRANTED,
    KEY,
    OPENED,
    RELEASED,
    RENEWED,
    REVOKED,
    WELCOME,
    ScriptedSession,
    matched,
    run_of,
)
from wire.scripted_store import ScriptedAttach, ScriptedCalls, refusal

LIMIT = 30.0
MATCH = prefix_cache_pb2.MatchPrefixResponse(match=matched(2))
PAGE = PageRef(EXTENT_ID, 2)
pytestmark = pytest.mark.usefixtures("releases_answered")


class Rig:
    """A client attached to scripted sockets, which announce an extent of a device."""

    def __init__(self, runtime_dir: RuntimeDir, calls: ScriptedCalls, config: ClientConfig) -> None:
        self.card = Card()
        address = self.card.malloc(256)
        assert address is not None
        self.address = address
        self.peer = ScriptedAttach(
            runtime_dir.attach_socket, [(WELCOME, ())], [(BOUND, ())], [(ACKNOWLEDGED, ())]
        )
        calls.answer("GrantLease", GRANTED)
        calls.answer("GetCapabilities", CAPABILITIES)
        calls.answer("OpenNamespace", OPENED)
        calls.answer("MatchPrefix", MATCH)
        calls.answer("RenewLease", *[RENEWED] * 9)
        calls.answer("ReleasePins", RELEASED)
        calls.answer("RevokeLease", REVOKED)
        self.client = Client(runtime_dir.path, config)

    def open(self) -> Namespace:
        """Attaches, announces the extent and returns the namespace, which may still be closed."""
        self.client.start()
        assert self.client.wait_connected(LIMIT)
        frame = attach_pb2.ServerFrame(extents=attach_pb2.Extents())
        handle = types_pb2.CudaIpcHandle(
            ipc_handle=self.card.handle(self.address), device_uuid=self.card.uuid, size_bytes=256
        )
        frame.extents.extents.add(
            extent_id=EXTENT_ID, arena_id=1, slot_count=4, slot_bytes=64, cuda_ipc=handle
        )
        self.peer.send((frame, ()))
        return self.client.namespace(*KEY)

    @property
    def mapped_count(self) -> int:
        """Returns the number of mappings of the device's memory."""
        return self.card.mapped[self.address]

    def close(self) -> None:
        """Closes the client and its peer."""
        self.client.close()
        self.peer.close()


@pytest.fixture
def rigs(
    runtime_dir: RuntimeDir, scripted: ScriptedCalls, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Rig]]:
    """Makes a rig. Its process sees the device if ``seen`` is true."""
    made: list[Rig] = []

    def make(*, seen: bool = True, **settings: Callable[[], None]) -> Rig:
        config = ClientConfig(call_timeout=LIMIT, connect_timeout=LIMIT, **settings)
        rig = Rig(runtime_dir, scripted, config)
        made.append(rig)
        if seen:
            memory = cuda_memory.CudaMemory(lambda: ClientCuda(rig.card))
            monkeypatch.setattr(cuda_memory, "_of_process", memory)
        return rig

    yield make
    for rig in made:
        rig.close()


def test_pages_are_tensors_and_no_bytes(rigs: Callable[..., Rig]) -> None:
    """A device's page is read and written as a tensor, and its bytes raise NotHostMemory."""
    rig = rigs()
    namespace = rig.open()
    assert namespace.wait_open(LIMIT)
    namespace.page_tensor(PAGE)[:] = 9
    assert namespace.extent_tensor(EXTENT_ID)[2].tolist() == [9] * 64
    assert bytes(rig.card.memory[rig.address])[128:192] == bytes([9] * 64)
    for ask in (lambda: namespace.page(PAGE), lambda: namespace.extents):
        with pytest.raises(errors.NotHostMemory):
            ask()


def test_a_release_waits_for_the_device_by_itself(rigs: Callable[..., Rig]) -> None:
    """A release waits for the pages' device, unless the caller configured its own wait."""
    rig = rigs()
    namespace = rig.open()
    assert namespace.wait_open(LIMIT)
    with namespace.match([1] * 9) as match:
        assert (match.pages, rig.card.calls.count("synchronize")) == ([PAGE], 0)
    assert rig.card.calls.count("synchronize") == 1


def test_a_caller_s_own_wait_is_the_only_one(rigs: Callable[..., Rig]) -> None:
    """A configured wait replaces the wait for the whole device."""
    waits: list[int] = []
    rig = rigs(wait_for_device=lambda: waits.append(1))
    namespace = rig.open()
    assert namespace.wait_open(LIMIT)
    namespace.match([1] * 9).release()
    assert (waits, rig.card.calls.count("synchronize")) == ([1], 0)


def test_a_hang_up_unmaps_once_nothing_is_held_or_viewed(rigs: Callable[..., Rig]) -> None:
    """After a hang-up the memory is unmapped once the last hold and the last view are gone."""
    rig = rigs()
    namespace = rig.open()
    assert namespace.wait_open(LIMIT)
    match = namespace.match([1] * 9)
    view, number = namespace.page_tensor(PAGE), namespace.session_number
    rig.peer.hang_up()
    assert wait_until(lambda: not rig.client.connected)
    assert namespace.session_number == number
    match.release()
    assert wait_until(lambda: namespace.session_number != number)
    assert (rig.mapped_count, view.numel()) == (1, 64)
    del view
    assert wait_until(lambda: rig.mapped_count == 0)


def assert_closed_by(rig: Rig, words: str) -> None:
    """Checks that a namespace stays closed, with its reason in each request."""
    namespace = rig.open()
    assert wait_until(lambda: isinstance(namespace.failure, errors.DeviceUnavailable))
    assert words in str(namespace.failure)
    assert isinstance(namespace.match([1] * 9).failure, errors.DeviceUnavailable)
    with pytest.raises(errors.DeviceUnavailable):
        namespace.reserve(start_page=0, page_count=1)
    assert wait_until(lambda: len(rig.peer.frames) > 2)
    assert list(rig.peer.frames[2].acknowledge.extent_ids) == []
    assert rig.client.connected


def test_a_device_that_cannot_be_mapped_is_a_namespace_s_failure(rigs: Callable[..., Rig]) -> None:
    """A device that cannot be mapped closes the namespace, and its extent is not acknowledged."""
    rig = rigs()
    rig.card.fail = "open"
    assert_closed_by(rig, "CUDA refused open")


@pytest.mark.skipif(find_spec("cupy") is not None, reason="cupy is here")
def test_a_process_without_cuda_has_a_closed_namespace(rigs: Callable[..., Rig]) -> None:
    """A process without cupy, or without torch's CUDA, has a closed namespace."""
    assert_closed_by(rigs(seen=False), "cupy cannot be loaded")


class OneSession:
    """A connector whose session is open."""

    def __init__(self, attached: ScriptedSession) -> None:
        self.session = attached.open()

    def want(self, key: object) -> None:
        """Does nothing, because the namespace is open already."""
        assert key == KEY

    def require_session(self) -> object:
        """Returns the session."""
        return self.session

    def new_budget(self) -> StoreBudget:
        """Returns a budget of 30 s."""
        return StoreBudget(30.0)


@pytest.fixture
def namespace(attached: ScriptedSession) -> Namespace:
    """Provides a namespace in that session."""
    return Namespace(cast("Connector", OneSession(attached)), KEY)


def with_strange_source() -> pb.PrefixMatch:
    """Returns a match whose source page is in an extent that this process has not mapped."""
    match = matched(0)
    match.source.source_pin_id = 1
    match.source.valid_token_count = 2
    match.source.page.CopyFrom(run_of(0, extent_id=99))
    return match


def with_cut_off_run() -> pb.PrefixMatch:
    """Returns a match whose packed slots end within a number."""
    match = matched(0)
    match.runs.add(extent_id=run_of(0).extent_id, packed_slot_indexes=bytes(7))
    return match


UNUSABLE = with_strange_source(), with_cut_off_run()


@pytest.mark.parametrize(
    "answer",
    [grpc.StatusCode.UNAVAILABLE, *(pb.MatchPrefixResponse(match=each) for each in UNUSABLE)],
)
def test_both_pins_of_a_match_go_back(
    attached: ScriptedSession, namespace: Namespace, answer: pb.MatchPrefixResponse
) -> None:
    """Both pins of a match are released if the answer is lost, cut off or names unmapped memory."""
    attached.calls.answer("MatchPrefix", answer)
    assert isinstance(namespace.match([1, 2, 3, 4, 5]).failure, errors.StoreUnavailable)
    assert attached.session.flush(30)
    [asked] = map(pb.MatchPrefixRequest.FromString, attached.calls.requests["MatchPrefix"])
    [back] = map(pb.ReleasePinsRequest.FromString, attached.calls.requests["ReleasePins"])
    assert asked.source_pin_id
    assert list(back.pin_ids) == [asked.pin_id, asked.source_pin_id]


@pytest.mark.parametrize(
    "answer",
    [grpc.StatusCode.UNAVAILABLE, *(pb.AcquirePrefixResponse(match=each) for each in UNUSABLE)],
)
def test_all_that_an_acquire_may_take_goes_back(
    attached: ScriptedSession, namespace: Namespace, answer: pb.AcquirePrefixResponse
) -> None:
    """Both pins and the reservation of an acquire without a usable answer are released."""
    attached.calls.answer("AcquirePrefix", answer)
    acquired = namespace.acquire([1, 2, 3, 4, 5], total_page_count=2)
    assert isinstance(acquired.failure, errors.StoreUnavailable)
    assert attached.session.flush(30)
    [asked] = map(pb.AcquirePrefixRequest.FromString, attached.calls.requests["AcquirePrefix"])
    [back] = map(pb.ReleasePinsRequest.FromString, attached.calls.requests["ReleasePins"])
    [gone] = map(pb.AbortReservationRequest.FromString, attached.calls.requests["AbortReservation"])
    assert list(back.pin_ids) == [asked.pin_id, asked.source_pin_id]
    assert list(gone.reservation_ids) == [asked.reservation_id]


def test_groups_are_a_miss_at_a_server_that_does_not_know_them(
    attached: ScriptedSession, namespace: Namespace
) -> None:
    """Such a server answers the path alone: its pins go back."""
    attached.calls.answer("MatchPrefix", pb.MatchPrefixResponse(match=matched(2)))
    match = namespace.match([1, 2, 3, 4, 5], groups=[GroupWindow(1, 1)])
    assert isinstance(match.failure, errors.FeatureUnsupported)
    assert (match.page_count, match.groups) == (0, {})
    assert attached.session.flush(30)
    [asked] = map(pb.MatchPrefixRequest.FromString, attached.calls.requests["MatchPrefix"])
    [back] = map(pb.ReleasePinsRequest.FromString, attached.calls.requests["ReleasePins"])
    assert [each.group for each in asked.groups] == [1]
    assert list(back.pin_ids) == [asked.pin_id]


def test_a_match_has_the_pages_of_its_groups(
    attached: ScriptedSession, namespace: Namespace
) -> None:
    """By group, from their first page on; a page that is not mapped gives the pin back."""
    match = matched(0, 1)
    match.groups.add(group=3, start_page=1, runs=[run_of(2)])
    strange = matched(0)
    strange.groups.add(group=3, runs=[run_of(0, extent_id=99)])
    attached.calls.answer(
        "MatchPrefix", *(pb.MatchPrefixResponse(match=each) for each in (match, strange))
    )
    with namespace.match([1] * 9, groups=[GroupWindow(3)]) as found:
        assert (found.groups[3].start_page, found.groups[3].pages) == (1, [PAGE])
        assert found.current
    lost = namespace.match([1] * 9, groups=[GroupWindow(3)])
    assert isinstance(lost.failure, errors.StoreUnavailable)


@pytest.mark.parametrize(
    ("tier_3", "remote", "wanted"),
    [(0, 0, (0, 0)), (8, 0, (2, 0)), (8, 4, (1, 1)), (8, 8, (0, 2)), (4, 8, (0, 1))],
)
def test_a_match_says_from_where_its_pages_were_loaded(
    attached: ScriptedSession,
    namespace: Namespace,
    tier_3: int,
    remote: int,
    wanted: tuple[int, int],
) -> None:
    """Tokens of tier 3 came from the disk, apart from the remote ones at the end."""
    answer = matched(0, 1)
    answer.tier_3_loaded_token_count, answer.remote_loaded_token_count = tier_3, remote
    attached.calls.answer("MatchPrefix", pb.MatchPrefixResponse(match=answer))
    with namespace.match([1] * 9) as match:
        assert match.loaded_pages == wanted


def test_a_prefetch_says_what_is_loaded(attached: ScriptedSession, namespace: Namespace) -> None:
    """The tokens go with the call, and its counts come back."""
    attached.session.features = frozenset({PREFETCH})
    attached.calls.answer(
        "PrefetchPrefix",
        pb.PrefetchPrefixResponse(
            memory_token_count=4, loading_token_count=8, declined_token_count=12
        ),
    )
    assert namespace.can_prefetch
    assert namespace.prefetch([1, 2, 3, 4, 5]) == Prefetched(4, 8, 12)
    [asked] = map(pb.PrefetchPrefixRequest.FromString, attached.calls.requests["PrefetchPrefix"])
    assert (asked.namespace_id, asked.sequence.tokens) == (b"space", pack_tokens([1, 2, 3, 4, 5]))
    assert asked.caller.store_epoch == attached.session.store_epoch


def test_without_tier_3_a_prefetch_makes_no_call(
    attached: ScriptedSession, namespace: Namespace
) -> None:
    """Nothing is loaded, and wrong tokens are still refused."""
    assert not namespace.can_prefetch
    assert namespace.prefetch([1, 2]) == Prefetched()
    assert "PrefetchPrefix" not in attached.calls.requests
    with pytest.raises(ValueError, match="token"):
        namespace.prefetch([-1])


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.StoreUnavailable),
        (refusal("NAMESPACE_NOT_FOUND"), errors.NamespaceNotFound),
    ],
)
def test_a_prefetch_that_fails_loads_nothing(
    attached: ScriptedSession, namespace: Namespace, answer: object, kind: type[errors.StoreError]
) -> None:
    """The failure is in the result. A namespace that is not there any more is opened again."""
    attached.session.features = frozenset({PREFETCH})
    attached.calls.answer("PrefetchPrefix", answer)
    found = namespace.prefetch([1, 2])
    assert isinstance(found.failure, kind)
    assert (found.memory_token_count, found.loading_token_count) == (0, 0)
    assert (KEY in attached.session.namespaces) == (kind is errors.StoreUnavailable)
