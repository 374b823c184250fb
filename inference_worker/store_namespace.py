"""The store's namespace for a model's pages."""

import kvstore_client
from inference_worker.model import PagedModel


def model_namespace(
    client: kvstore_client.Client, model: PagedModel, page_tokens: int, display_name: str
) -> kvstore_client.Namespace:
    """Return the namespace of a model's pages of ``page_tokens`` tokens.

    Its identity is the digest of the model's weights and configuration, never a name.
    It opens in the background, in each session of the client.
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
