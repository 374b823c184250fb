"""Keys of real requests of vLLM: whatever tells its own blocks apart tells pages apart."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from kvstore_vllm.identity.adapters import AdapterDigests
from kvstore_vllm.identity.request_key import RequestKey

PAGE = 16
PROMPT = 5 * PAGE
PAD = 3


@pytest.fixture(scope="module", autouse=True)
def _seed() -> None:
    """Gives vLLM's hashes their beginning."""
    init_none_hash(sha256)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[int, LoRARequest]:
    """Two adapters of one name."""
    from safetensors.torch import save_file  # noqa: PLC0415

    made = {}
    for number in (1, 2):
        folder = tmp_path_factory.mktemp("adapter")
        save_file({"a": torch.full((8, 8), number)}, folder / "adapter_model.safetensors")
        made[number] = LoRARequest("adapter", number, str(folder))
    return made


def image(
    identifier: str, offset: int, length: int, *, masked: bool = False
) -> MultiModalFeatureSpec:
    """An image at a place of a prompt."""
    mask = torch.arange(length) % 2 == 0 if masked else None
    place = PlaceholderRange(offset=offset, length=length, is_embed=mask)
    return MultiModalFeatureSpec(
        data=None, modality="image", identifier=identifier, mm_position=place
    )


def make_request(
    tokens: list[int],
    features: list[MultiModalFeatureSpec],
    salt: str | None,
    adapter: LoRARequest | None,
) -> Request:
    """Makes a request as an engine does, with the hashes of its blocks."""
    ids = list(tokens)
    for each in features:
        place = each.mm_position
        ids[place.offset : place.offset + place.length] = [PAD] * place.length
    return Request(
        request_id="r",
        prompt_token_ids=ids,
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        mm_features=features,
        lora_request=adapter,
        cache_salt=salt,
        block_hasher=get_request_block_hasher(PAGE, sha256),
    )


places = st.sampled_from([(2, 8), (10, 9), (16, 16), (30, 12), (60, 20)])
# Of a request: which of its tokens are others, its images, salt and adapter.
PARTS = (
    st.sets(st.integers(0, PROMPT - 1), max_size=2),
    st.lists(st.tuples(st.sampled_from("ab"), places), max_size=2),
    st.sampled_from([None, "", "x", "y"]),
    st.sampled_from([None, 1, 2]),
)
KNOWN = AdapterDigests()


@st.composite
def pairs(draw: st.DrawFn) -> list[list]:
    """Draws two requests that differ in one part at most, or in all."""
    first, second = ([draw(part) for part in PARTS] for _ in range(2))
    kept = draw(st.sampled_from([set(), *({0, 1, 2, 3} - {part} for part in range(len(PARTS)))]))
    return [first, [first[at] if at in kept else each for at, each in enumerate(second)]]


@settings(max_examples=100, deadline=None)
@given(pair=pairs())
def test_what_tells_blocks_apart_tells_pages_apart(
    adapters: dict[int, LoRARequest], pair: list[list]
) -> None:
    """Two requests whose block hashes differ also differ in salt or in tokens up to that block."""
    made = []
    for others, described, salt, number in pair:
        features, end = [], 0
        for identifier, (offset, length) in sorted(described, key=lambda each: each[1]):
            if offset >= end:
                features.append(image(identifier, offset, length))
                end = offset + length
        tokens = [int(at in others) for at in range(PROMPT)]
        made.append(make_request(tokens, features, salt, adapters.get(number)))
    keys = [RequestKey.of(each, adapters=KNOWN) for each in made]
    assert None not in keys
    salts, tokens = zip(
        *((key.salt, key.tokens(each.all_token_ids)) for key, each in zip(keys, made, strict=True)),
        strict=True,
    )
    assert len(made[0].block_hashes) == PROMPT // PAGE
    for block in range(PROMPT // PAGE):
        end = (block + 1) * PAGE
        same_block = made[0].block_hashes[block] == made[1].block_hashes[block]
        same_page = salts[0] == salts[1] and tokens[0][:end] == tokens[1][:end]
        # Every prompt here is of one vLLM and two adapters, so neither tells more than the other.
        assert same_page == same_block


def test_real_masks_and_embeddings_are_read() -> None:
    """A mask is in the key; embeddings as a prompt have no key."""
    tokens = list(range(PROMPT))
    plain = make_request(tokens, [image("a", 4, 20)], None, None)
    masked = make_request(tokens, [image("a", 4, 20, masked=True)], None, None)
    first, second = RequestKey.of(plain), RequestKey.of(masked)
    assert first is not None
    assert second is not None
    assert first.tokens(plain.all_token_ids) != second.tokens(masked.all_token_ids)
    embedded = Request(
        request_id="e",
        prompt_token_ids=None,
        prompt_embeds=torch.zeros(PROMPT, 4),
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
    )
    assert RequestKey.of(embedded) is None


def test_a_request_for_its_prompts_logprobs_reads_nothing() -> None:
    """Each of its tokens is computed, as vLLM's own cache has it."""
    request = Request(
        request_id="l",
        prompt_token_ids=list(range(PROMPT)),
        sampling_params=SamplingParams(max_tokens=1, prompt_logprobs=1),
        pooling_params=None,
    )
    key = RequestKey.of(request)
    assert key is not None
    assert not key.reads
