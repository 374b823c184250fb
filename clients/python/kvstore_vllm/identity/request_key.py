"""The key of a request's pages within a model: a salt and tokens."""

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Self

from kvstore_client.engines.canonical import mixed_salt, text_bytes
from kvstore_vllm.engine.vllm_types import LoraLike, RequestLike
from kvstore_vllm.identity.adapters import AdapterDigests
from kvstore_vllm.identity.placeholders import PlaceholderRun, runs_of

NO_ADAPTERS = AdapterDigests()


@dataclass(frozen=True)
class RequestKey:
    """A request's salt, and its tokens in the form that the store is asked for.

    Everything that vLLM hashes into a block is in one of the two: tokens, the cache salt, the
    adapter, and the content and place of images.
    """

    runs: tuple[PlaceholderRun, ...] = ()
    """The runs of placeholders of images and the like."""

    reads: bool = True
    """Says whether pages may be loaded for it.

    False if each token has to be computed, as for the prompt's logprobs. Computed pages may be
    saved all the same.
    """

    plain_salt: bytes = b""
    """The salt without the adapter's part."""

    adapter: LoraLike | None = None
    adapters: AdapterDigests = field(default=NO_ADAPTERS, repr=False)

    @classmethod
    def of(
        cls,
        request: RequestLike,
        *,
        base_salt: bytes = b"",
        adapters: AdapterDigests = NO_ADAPTERS,
    ) -> Self | None:
        """Returns the key of a request that arrived, or None if nothing of it is shared.

        Reads no file, so the scheduler's thread may call it. ``base_salt`` is common to
        the engine's requests. It is None for: a prompt of embeddings; a run with fewer
        placeholders than a digest has words; a prompt that may grow while it runs; an
        adapter that may change under its number.
        """
        tokens = request.prompt_token_ids
        if tokens is None or request.prompt_embeds is not None or request.resumable:
            return None
        adapter = request.lora_request
        if adapter is not None and adapter.load_inplace:
            return None
        runs = runs_of(request.mm_features, tokens)
        if not all(run.is_covered for run in runs):
            return None
        salt = mixed_salt(base=base_salt, user=text_bytes(request.cache_salt or ""))
        return cls(tuple(runs), not request.skip_reading_prefix_cache, salt, adapter, adapters)

    @property
    def salt(self) -> bytes:
        """The salt that separates it from others of the model; ``b""`` is none.

        The first use of an adapter reads its files, so call it on a thread that may wait.
        Raises ``UndigestableAdapter`` if the files cannot be read or have changed since:
        the request is not cacheable then.
        """
        if self.adapter is None:
            return self.plain_salt
        return mixed_salt(plain=self.plain_salt, adapter=self.adapters.digest_of(self.adapter))

    @property
    def namespace(self) -> Hashable:
        """A value that is the same for all requests of one namespace. Reads no file."""
        adapter = self.adapter
        name = adapter and (adapter.lora_name, adapter.lora_int_id, adapter.lora_path)
        return self.plain_salt, name

    def tokens(self, all_token_ids: Sequence[int], count: int | None = None) -> "array[int]":
        """Returns the first ``count`` tokens as the store is asked for them; None: all.

        A word of the content's digest replaces each placeholder. Raises ``ValueError`` for
        an id that is no uint32.
        """
        try:
            ids = array("I", all_token_ids[:count])
        except OverflowError as error:
            raise ValueError(f"token ids are integers from 0 to 2**32 - 1: {error}") from error
        for run in self.runs:
            run.write_into(ids)
        return ids

    def settled(self, count: int, page_tokens: int) -> int:
        """Returns how many of ``count`` matched tokens may be used, in whole pages.

        They are fewer if the match ends among the first words of an image's digest: so few
        words do not distinguish images.
        """
        while any(run.cuts(count) for run in self.runs):
            count = (count - 1) // page_tokens * page_tokens
        return count
