"""A model, an engine and, if available, a store: a whole worker in this process."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import kvstore_client
from inference_worker.engine.engine import PAGE_TOKENS, Engine
from inference_worker.engine.scheduler import MAX_RUNNING
from inference_worker.errors import DeviceLostError
from inference_worker.model.device import DeviceWork
from inference_worker.model.model import PagedModel, load_model
from inference_worker.model.names import CPU, DtypeName
from inference_worker.pages.namespaces import salt_bytes
from inference_worker.store.backend import PrefixCacheBackend, check_backend
from kvstore import __version__, tracing
from kvstore_client.runtime_dir import RuntimeDir

# How long to wait for a store that has a socket. A store that starts later is attached later.
ATTACH_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class LocalWorker:
    """An engine with its parts; without a client it uses no store."""

    model: PagedModel
    engine: Engine
    client: kvstore_client.Client | None
    namespace: kvstore_client.Namespace | None

    @property
    def without_store(self) -> str | None:
        """Why the worker has no store now, in words; None if it has one."""
        if self.namespace is None:
            return "the store is not used"
        failure = self.namespace.failure
        return None if failure is None else f"no store: {failure}"


def model_namespace(
    client: kvstore_client.Client, model: PagedModel, page_tokens: int, display_name: str
) -> kvstore_client.Namespace:
    """Returns the namespace of a model's pages of ``page_tokens`` tokens.

    Its identity is the digest of the model's weights and configuration, never a name. It opens in
    the background, in each session of the client.
    """
    layout = model.layout(page_tokens)
    content = kvstore_client.PagedContent(
        layer_count=layout.layer_count,
        kv_head_count=layout.kv_head_count,
        head_dim=layout.head_dim,
        dtype=layout.dtype,
        kv_factor=layout.kv_factor,
    )
    identity = kvstore_client.NamespaceIdentity(
        model_digest=bytes.fromhex(model.digest), display_name=display_name
    )
    return client.namespace(identity, kvstore_client.PageLayout.paged(page_tokens, content))


@contextmanager
def local_worker(  # noqa: PLR0913 - each is a setting, with a default
    model: str | PagedModel,
    *,
    backend: PrefixCacheBackend | None = None,
    runtime_dir: Path | None = None,
    name: str = "worker",
    page_tokens: int = PAGE_TOKENS,
    longest: int | None = None,
    attach_seconds: float | None = None,
    device: str = CPU,
    dtype: DtypeName | None = None,
    deterministic: bool = False,
    max_step_tokens: int | None = None,
    max_running: int = MAX_RUNNING,
    cache_salt: str = "",
    model_name: str | None = None,
) -> Iterator[LocalWorker]:
    """Loads a model (as ``load_model``) and attaches to the store in ``runtime_dir``.

    Waits ``attach_seconds`` for the store, then continues without it. By default it does not wait
    if no server listens. ``backend`` is the index that the store must have; None accepts any.
    With a ``cache_salt`` it uses the pages of requests with that salt only. After a
    ``DeviceLostError`` the client stays open: the process ends, and the store notices that. Raises
    the errors of ``load_model`` and ``check_backend``, and ``ValueError`` for a path that is too
    long.
    """
    with tracing.exported("kvstore-worker", __version__):
        if backend is not PrefixCacheBackend.NONE:
            check_backend(runtime_dir, backend)
        loaded = (
            load_model(model, device=device, dtype=dtype, deterministic=deterministic)
            if isinstance(model, str)
            else model
        )
        make_engine = partial(
            Engine,
            loaded,
            page_tokens=page_tokens,
            longest=longest,
            max_step_tokens=max_step_tokens,
            max_running=max_running,
        )
        if backend is PrefixCacheBackend.NONE:
            yield LocalWorker(loaded, make_engine(None), None, None)
            return
        if attach_seconds is None:
            attach_seconds = ATTACH_SECONDS if RuntimeDir(runtime_dir).is_served() else 0.0
        work = DeviceWork(loaded.device)
        config = kvstore_client.ClientConfig(display_name=name, wait_for_device=work.wait)
        with ExitStack() as stack:
            client = stack.enter_context(kvstore_client.Client(runtime_dir, config))
            shown = model_name or (model if isinstance(model, str) else name)
            namespace = model_namespace(client, loaded, page_tokens, shown)
            if cache_salt:
                namespace = namespace.salted(salt_bytes(cache_salt))
            namespace.wait_open(attach_seconds)
            try:
                yield LocalWorker(loaded, make_engine(namespace), client, namespace)
            except DeviceLostError:
                # Closing would wait for the pages held, and for a thread that may be in a call of
                # CUDA.
                stack.pop_all()
                raise
