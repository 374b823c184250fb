"""The pages of a namespace, as bytes and as tensors."""

from collections.abc import Iterable, Mapping
from copy import copy
from types import MappingProxyType
from typing import TYPE_CHECKING

from kvstore.v1 import types_pb2
from kvstore_client.errors import StoreError, StoreUnavailable
from kvstore_client.identity import NamespaceIdentity, NamespaceKey
from kvstore_client.layout import PageLayout
from kvstore_client.memory.extents import MappedExtent
from kvstore_client.memory.generations import PageGenerations
from kvstore_client.opened_namespace import OpenedNamespace
from kvstore_client.page_ref import DatedRun, PageRef
from kvstore_client.session.connector import Connector
from kvstore_client.session.session import Session
from kvstore_client.source import Source

if TYPE_CHECKING:
    import torch


class NamespaceMemory:
    """The memory of a namespace in this process, whatever session it is of.

    Pages of what is held stay mapped, also when the session ended. Any thread may
    use it.
    """

    def __init__(self, connector: Connector, key: NamespaceKey) -> None:
        self._connector = connector
        self._key = key

    @property
    def identity(self) -> NamespaceIdentity:
        """Who may share."""
        return self._key.identity

    @property
    def layout(self) -> PageLayout:
        """How its pages are laid out."""
        return self._key.layout

    @property
    def namespace_id(self) -> bytes:
        """Its id at the store, for administration; raises ``StoreError`` where it is not open."""
        return self._opened(self._connector.require_session()).namespace_id

    def forget(self) -> None:
        """Have it opened no more, and closed to this client's requests from now on.

        What is held of it stays. All that were asked for by the same identity and layout are
        this one.
        """
        self._connector.forget(self._key)

    @property
    def session_number(self) -> int:
        """Changes whenever the extents that are mapped do: then build views anew.

        Read it while something is held: the memory stays as it is until then.
        A view that is kept keeps its extent mapped, also one that nobody uses
        any more.
        """
        self._connector.check_process()
        session = self._connector.session
        return 0 if session is None else session.extents.number

    @property
    def extents(self) -> Mapping[int, memoryview]:
        """The extents that are mapped, each as in :meth:`extent`, by id."""
        self._connector.check_process()
        return MappingProxyType({key: each.view() for key, each in self._mapped().items()})

    def extent(self, extent_id: int) -> memoryview:
        """Returns all slots of an extent as writable bytes; raises ``KeyError``.

        Raises :class:`~kvstore_client.errors.NotHostMemory` for pages of a device,
        as every method here does that gives bytes: those have tensors alone.
        """
        return self._extent(extent_id).view()

    def page(self, page: PageRef) -> memoryview:
        """Returns one page as writable bytes; raises ``KeyError`` or ``IndexError``.

        Only a reserved page that is not inserted yet may be written.
        """
        return self._extent(page.extent_id).slot(page.slot)[: self.layout.page_bytes]

    def extent_tensor(self, extent_id: int) -> "torch.Tensor":
        """Returns all slots as ``[slots, *page shape]``, sharing memory; raises ``KeyError``.

        Of an opaque layout: ``[slots, page_bytes]`` of uint8.
        """
        return self._extent(extent_id).tensor(self.layout)

    def page_tensor(self, page: PageRef) -> "torch.Tensor":
        """Returns one page as a tensor, as in :meth:`extent_tensor`, sharing memory."""
        return self.extent_tensor(page.extent_id)[page.slot]

    def copy_page(self, source: PageRef | Source, target: PageRef) -> None:
        """Copies all of a page into one that this process may write, such as a reserved one.

        On a device the copy is queued on the current stream. A match's source is
        waited for and looked at after it (:meth:`Source.require_current`): the
        copy is that page, or this raises ``PageRecycled`` and it is to be dropped.
        Loads torch; raises as :meth:`page_tensor` does.
        """
        page = source.page if isinstance(source, Source) else source
        self.page_tensor(target).copy_(self.page_tensor(page))
        if isinstance(source, Source):
            source.require_current()

    def recycled(self, runs: Iterable[DatedRun]) -> list[PageRef]:
        """Returns the pages of ``runs`` that are not what they were, as ``Match.current`` looks.

        For a process that joined the lease of the one that holds them, after it copied them.
        Without a session none is what it was.
        """
        self._connector.check_process()
        session = self._connector.session
        named = [
            types_pb2.PageRun(extent_id=run[0], slot_indexes=run[1], generations=run[2])
            for run in runs
        ]
        if session is None:
            return [PageRef(run.extent_id, slot) for run in named for slot in run.slot_indexes]
        return PageGenerations(named).recycled(session.extents)

    def _extent(self, extent_id: int) -> MappedExtent:
        self._connector.check_process()
        session = self._connector.session
        mapped = None if session is None else session.extents.get(extent_id)
        if mapped is None:
            raise KeyError(extent_id)
        return mapped

    def _mapped(self) -> dict[int, MappedExtent]:
        session = self._connector.session
        opened = None if session is None else session.namespaces.get(self._key)
        if session is None or not isinstance(opened, OpenedNamespace):
            return {}
        return session.extents.of_arena(opened.arena_id)

    def _opened(self, session: Session) -> OpenedNamespace:
        """Returns the namespace in this session; raises ``StoreError`` where it is not open."""
        opened = session.namespaces.get(self._key)
        if session.ended is not None:
            raise copy(session.ended)
        if isinstance(opened, StoreError):
            raise copy(opened)
        if opened is None:
            reason = session.not_yet.get(self._key)
            why = "" if reason is None else f": {reason}"
            raise StoreUnavailable(f"the namespace is not open yet{why}")
        return opened
