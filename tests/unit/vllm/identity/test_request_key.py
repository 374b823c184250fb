"""The key of a request's pages."""

from array import array
from dataclasses import replace

import pytest

from kvstore_vllm.identity.request_key import RequestKey
from vllm_rig.vllm_stand_ins import Feature, Lora, Mask, Placeholder, PromptRequest

PROMPT = list(range(100, 164))
PAD = 7
PAGE = 16


def image(identifier: str, offset: int = 8, length: int = 20) -> Feature:
    """Returns the placeholders of an image."""
    return Feature(identifier, Placeholder(offset, length))


def with_images(*features: Feature) -> PromptRequest:
    """Returns a prompt whose images are among other tokens. All placeholders have one id."""
    ids = list(PROMPT)
    for each in features:
        place = each.mm_position
        ids[place.offset : place.offset + place.length] = [PAD] * place.length
    return PromptRequest(ids, mm_features=list(features))


def key_of(request: PromptRequest, base_salt: bytes = b"") -> RequestKey:
    """Returns the key of a request that has one."""
    key = RequestKey.of(request, base_salt=base_salt)
    assert key is not None
    return key


def test_plain_text_is_its_tokens() -> None:
    """The key of a text has no salt and its unchanged tokens, up to the requested number."""
    key = key_of(PromptRequest(PROMPT))
    assert key.salt == b""
    assert key.reads
    assert key.tokens(PROMPT) == array("I", PROMPT)
    assert key.tokens([*PROMPT, 9, 8], 65) == array("I", [*PROMPT, 9])


def test_salts_differ_where_anything_of_them_does() -> None:
    """The user's and the engine's salts give six different salts, also when they are swapped."""
    requests = [PromptRequest(PROMPT), PromptRequest(PROMPT, "a"), PromptRequest(PROMPT, "b")]
    salts = {key_of(each, base).salt for each in requests for base in (b"", b"a")}
    assert len(salts) == 6
    assert all(len(salt) in (0, 32) for salt in salts)


def test_an_empty_salt_is_none() -> None:
    """An empty salt means none, as in vLLM."""
    assert key_of(PromptRequest(PROMPT, "")).salt == b""


def test_any_text_is_a_salt() -> None:
    """Half a surrogate pair, which JSON allows, is a valid salt."""
    assert key_of(PromptRequest(PROMPT, "\ud800")).salt != key_of(PromptRequest(PROMPT, "?")).salt


def test_an_image_stands_in_its_placeholders() -> None:
    """An image's placeholders get the eight words of its digest, and other tokens are unchanged."""
    key = key_of(with_images(image("one")))
    ids = key.tokens(PROMPT)
    words = ids[8:16]
    assert len(set(words)) == 8
    assert ids[8:28] == (words * 3)[:20]
    assert ids[:8] == array("I", PROMPT[:8])
    assert ids[28:] == array("I", PROMPT[28:])


def test_a_part_of_an_image_begins_as_all_of_it() -> None:
    """Prefixes of different lengths agree, also within an image."""
    key = key_of(with_images(image("one")))
    whole = key.tokens(PROMPT)
    for count in range(len(PROMPT)):
        assert key.tokens(PROMPT, count) == whole[:count]


def test_images_differ_by_what_they_are_and_where() -> None:
    """An image's content, kind, place, length, mask and placeholder ids each change the key."""
    one = image("one")
    sound = replace(one, modality="audio")
    masked = Feature("one", Placeholder(8, 20, Mask([True] * 19 + [False])))
    requests = [
        with_images(one),
        with_images(image("two")),
        with_images(sound),
        with_images(masked),
        with_images(image("one", 9)),
        with_images(image("one", 8, 21)),
        with_images(one, image("one", 28, 8)),
    ]
    other = with_images(one)
    assert other.prompt_token_ids is not None
    other.prompt_token_ids[20] = 5
    keys = [key_of(each).tokens(PROMPT).tobytes() for each in [*requests, other]]
    assert len(set(keys)) == 8


def test_inputs_in_one_place_are_both_in_the_key() -> None:
    """Overlapping inputs, such as a video's frames and sound, are both part of the key."""
    frames, sound = image("frames", 8, 20), Feature("sound", Placeholder(10, 12), "audio")
    first = key_of(with_images(frames, sound))
    other_frames = key_of(with_images(replace(frames, identifier="x"), sound))
    other_sound = key_of(with_images(frames, replace(sound, identifier="x")))
    other_order = key_of(with_images(sound, frames))
    ids = {each.tokens(PROMPT).tobytes() for each in (first, other_frames, other_sound)}
    assert len(ids) == 3
    assert [(run.start, run.end) for run in first.runs] == [(8, 28)]
    assert other_order.tokens(PROMPT) == first.tokens(PROMPT)


def test_a_match_ends_at_no_part_of_a_digest() -> None:
    """A page is not used if its last tokens are only a part of an image's digest."""
    key = key_of(with_images(image("one", 44, 16)))
    assert key.settled(64, PAGE) == 64
    assert key.settled(48, PAGE) == 32
    assert key.settled(32, PAGE) == 32
    assert key_of(with_images(image("one", 40, 16))).settled(48, PAGE) == 48
    assert key_of(with_images(image("one", 48, 16))).settled(48, PAGE) == 48
    crowded = key_of(with_images(image("one", 13, 8), image("two", 30, 8), image("x", 42, 8)))
    assert crowded.settled(48, PAGE) == 0


@pytest.mark.parametrize(
    "request_",
    [
        PromptRequest(None, prompt_embeds=[[0.5]]),
        PromptRequest(PROMPT, prompt_embeds=[[0.5]]),
        PromptRequest(PROMPT, resumable=True),
        PromptRequest(PROMPT, lora_request=Lora("/nowhere", load_inplace=True)),
        with_images(image("one"), image("short", 40, 7)),
    ],
    ids=["embeddings alone", "embeddings", "growing", "adapter in place", "few placeholders"],
)
def test_what_a_key_cannot_hold_has_none(request_: PromptRequest) -> None:
    """A request that a key cannot describe has no key and shares nothing."""
    assert RequestKey.of(request_) is None


def test_who_needs_each_token_computed_loads_none() -> None:
    """A request that skips the prefix cache, such as for prompt logprobs, loads nothing."""
    assert not key_of(PromptRequest(PROMPT, skip_reading_prefix_cache=True)).reads


def test_an_id_that_is_none_is_refused() -> None:
    """An id that is no uint32 is refused."""
    with pytest.raises(ValueError, match="token ids"):
        key_of(PromptRequest(PROMPT)).tokens([2**32])
