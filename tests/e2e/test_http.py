"""``kvstore-worker serve`` under OpenAI's own client, and the counters of its store."""

from collections import Counter
from collections.abc import Iterator
from threading import Thread

import httpx2
import openai
import pytest
from openai import OpenAI

from engines.http_stage import KEYS, LONGEST, HttpStage, cached, http_stage
from kvstore_client.testing import wait_until

PAGE = 16
TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps until noon. "


@pytest.fixture(scope="module")
def stage(cache: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpStage]:
    """Provides one server and one store for all tests of this module."""
    del cache
    with http_stage(tmp_path_factory.mktemp("http")) as running:
        yield running


@pytest.fixture
def client(stage: HttpStage) -> Iterator[OpenAI]:
    """Provides a client, and checks afterwards that nothing is held."""
    with stage.client() as made:
        yield made
    assert stage.settled()


def complete(client: OpenAI, prompt: str | list[int], **more: object) -> openai.types.Completion:
    """Requests a greedy completion."""
    options = {"max_tokens": 8, "temperature": 0, **more}
    return client.completions.create(model="tiny", prompt=prompt, **options)  # type: ignore[call-overload]


def moved(stage: HttpStage, before: "Counter[str]") -> "Counter[str]":
    """Returns by how much each counter of the store grew, once nothing is held."""
    assert stage.settled()
    after = stage.counters()
    del after["verified_page_count"]  # which pages are looked at is left to chance
    for measured in ("timed_token_count", "saved_prefill_us"):  # by how fast the engine was so far
        del after[measured]
    return after - before


def counts(prompt: int, output: int, found: int = 0, *, again: bool = False) -> "Counter[str]":
    """Returns the growth of the store's counters for one request of so many tokens.

    The last token of an output is never computed. ``again`` means that all of a prompt, its next
    token and its output are known. Computing them once more adds no page.
    """
    whole, copied = divmod(prompt if again else found, PAGE)
    pages = -(-(prompt + output - 1) // PAGE) - whole
    outcome = "full_hit_count" if again else "partial_hit_count" if found else "miss_count"
    made = Counter(
        lookup_count=1,
        asked_token_count=prompt,
        matched_token_count=whole * PAGE,
        copied_token_count=copied,
        next_token_count=int(again),
    )
    made.update([outcome])
    made["duplicate_page_count" if again else "inserted_page_count"] = pages
    return +made


def test_cold_hit_partial_and_miss(stage: HttpStage, client: OpenAI) -> None:
    """A miss, a hit and a partial hit differ in usage and counters, and not in their text."""
    prompt = "1 " + TEXT * 2
    before = stage.counters()
    cold = complete(client, prompt)
    assert cached(cold) == 0
    assert moved(stage, before) == counts(len(prompt), 8)

    before = stage.counters()
    hit = complete(client, prompt)
    assert cached(hit) == len(prompt)
    assert hit.choices[0].text == cold.choices[0].text
    assert moved(stage, before) == counts(len(prompt), 8, again=True)

    before = stage.counters()
    parting = prompt[:100] + "#" + TEXT
    assert cached(complete(client, parting)) == 100
    assert moved(stage, before) == counts(len(parting), 8, 100)

    before = stage.counters()
    other = "another " + TEXT
    assert cached(complete(client, other)) == 0
    assert moved(stage, before) == counts(len(other), 8)

    before = stage.counters()
    off = complete(client, prompt, extra_body={"cache_prefix": False})
    short = complete(client, prompt, extra_body={"min_cache_tokens": 500})
    assert cached(off) == cached(short) == 0
    assert off.choices[0].text == short.choices[0].text == cold.choices[0].text
    assert moved(stage, before) == Counter()


def test_users_and_salts_share_nothing(stage: HttpStage, client: OpenAI) -> None:
    """Users and salts share no pages, and each finds its own again."""
    prompt = "2 " + TEXT
    before = stage.counters()
    first = complete(client, prompt)
    with stage.client("bob") as bob:
        again = [complete(bob, prompt) for _ in range(2)]
    salted = [complete(client, prompt, extra_body={"cache_salt": "x"}) for _ in range(2)]
    assert [cached(each) for each in again] == [0, len(prompt)]
    assert [cached(each) for each in salted] == [0, len(prompt)]
    assert {each.choices[0].text for each in (first, *again, *salted)} == {first.choices[0].text}

    with OpenAI(base_url=f"{stage.url}/v1", api_key="nobody", max_retries=0) as nobody:
        with pytest.raises(openai.AuthenticationError) as refused:
            nobody.models.list()
        assert refused.value.code == "invalid_api_key"
    cold, hit = counts(len(prompt), 8), counts(len(prompt), 8, again=True)
    assert moved(stage, before) == cold + cold + hit + cold + hit


def test_a_chat_goes_on_from_its_turns(stage: HttpStage, client: OpenAI) -> None:
    """A chat's second turn finds all whole pages of the first turn and its answer."""
    before = stage.counters()
    first = [{"role": "system", "content": TEXT}, {"role": "user", "content": "Why?"}]
    ask = {"model": "tiny", "temperature": 0, "max_tokens": 24, "seed": 3}
    told = client.chat.completions.create(messages=first, **ask)  # type: ignore[call-overload]
    answer = {"role": "assistant", "content": told.choices[0].message.content}
    second = [*first, answer, {"role": "user", "content": [{"type": "text", "text": "How?"}]}]
    again = client.chat.completions.create(messages=second, **ask)  # type: ignore[call-overload]
    assert cached(again) >= told.usage.prompt_tokens // PAGE * PAGE
    assert told.choices[0].message.role == "assistant"
    turns = [
        counts(each.usage.prompt_tokens, each.usage.completion_tokens, cached(each))
        for each in (told, again)
    ]
    assert moved(stage, before) == turns[0] + turns[1]


def test_a_stream_says_what_the_whole_says(stage: HttpStage, client: OpenAI) -> None:
    """A stream has the same text as a whole answer, and its usage at the end on request."""
    prompt = "3 " + TEXT
    before = stage.counters()
    whole = complete(client, prompt, max_tokens=40)
    chunks = list(
        complete(client, prompt, max_tokens=40, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert cached(chunks[-1]) == len(prompt)
    assert moved(stage, before) == counts(len(prompt), 40) + counts(len(prompt), 40, again=True)

    before = stage.counters()
    messages = [{"role": "user", "content": TEXT}]
    ask = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 20}
    answer = client.chat.completions.create(**ask)  # type: ignore[call-overload]
    said = answer.choices[0]
    deltas = [c.choices[0] for c in client.chat.completions.create(stream=True, **ask)]  # type: ignore[call-overload]
    assert "".join(each.delta.content or "" for each in deltas) == said.message.content
    assert deltas[0].delta.role == "assistant"
    assert deltas[-1].finish_reason == said.finish_reason
    length = answer.usage.prompt_tokens
    assert moved(stage, before) == counts(length, 20) + counts(length, 20, again=True)


def test_stops_and_seeds(client: OpenAI) -> None:
    """A stop string ends a request and is cut out, a seed repeats draws, and n gives several."""
    prompt = "4 " + TEXT
    whole = complete(client, prompt, max_tokens=60).choices[0].text
    stop = whole[20:23]
    end = whole.index(stop)
    stopped = complete(client, prompt, max_tokens=60, stop=[stop, "never there"])
    assert stopped.choices[0].text == whole[:end]
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.usage is not None
    assert stopped.usage.completion_tokens < 60
    assert cached(stopped) == len(prompt)
    chunks = complete(client, prompt, max_tokens=60, stop=stop, stream=True)
    assert "".join(each.choices[0].text for each in chunks) == whole[:end]  # type: ignore[union-attr, misc]
    drawn = [complete(client, prompt, temperature=1.5, seed=7, n=2) for _ in range(2)]
    texts = [[each.text for each in one.choices] for one in drawn]
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][1]
    ids = complete(client, list(prompt.encode()))
    assert ids.choices[0].text == complete(client, prompt).choices[0].text


@pytest.mark.parametrize("stream", [False, True])
def test_who_goes_away_is_aborted(stage: HttpStage, client: OpenAI, stream: bool) -> None:  # noqa: FBT001
    """A request whose client disconnects is aborted, in its prompt or in its answer."""
    aborted = 'kvstore_worker_request_success_total{finished_reason="abort"}'
    before, counted = stage.metric(aborted), stage.counters()
    prompt = "5 " + TEXT if stream else "6 " + TEXT * 20
    if stream:
        pieces = complete(client, prompt, max_tokens=1500, stream=True)
        next(iter(pieces))  # type: ignore[call-overload]
        pieces.close()  # type: ignore[attr-defined]
    else:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 400}
        headers = {"Authorization": f"Bearer {KEYS['ann']}"}
        with (
            httpx2.Client(timeout=httpx2.Timeout(60, read=0.05)) as impatient,
            pytest.raises(httpx2.ReadTimeout),
        ):
            impatient.post(f"{stage.url}/v1/completions", json=body, headers=headers)
    assert wait_until(lambda: stage.metric(aborted) == before + 1)
    made = moved(stage, counted)
    kept = made.pop("inserted_page_count", 0)
    asked = counts(len(prompt), 1)
    known = asked.pop("inserted_page_count")
    if stream:  # its prompt was through, and its output was not
        assert made == asked
        assert known <= kept < counts(len(prompt), 1500)["inserted_page_count"]
    else:  # or it went before the engine saw it
        assert made in (asked, Counter())
        assert kept <= known


def test_a_full_queue_refuses(stage: HttpStage, client: OpenAI) -> None:
    """A full queue refuses a request, and the running and waiting ones are answered."""
    waited: list[str] = []

    def wait(number: int) -> None:
        waited.append(complete(client, prompts[number]).choices[0].text)

    # Each begins like no other.
    prompts = [f"{first} {TEXT}" for first in "78"]
    before = stage.counters()
    waiters = [Thread(target=wait, args=(number,)) for number in range(2)]
    pieces = complete(client, "q " + TEXT, max_tokens=1500, stream=True)
    next(iter(pieces))  # type: ignore[call-overload]
    for each in waiters:
        each.start()
    assert wait_until(lambda: stage.metric("kvstore_worker_num_requests_waiting") == 2)
    with pytest.raises(openai.RateLimitError) as refused:
        complete(client, "9 " + TEXT)
    assert refused.value.response.headers["retry-after"]
    pieces.close()  # type: ignore[attr-defined]
    for each in waiters:
        each.join()
    assert len(waited) == 2
    made = moved(stage, before)
    answered = sum((counts(len(each), 8) for each in prompts), counts(len(prompts[0]), 1))
    # The one that ran was cut somewhere in its output; the one that was refused asked for nothing.
    assert made.pop("inserted_page_count") >= answered.pop("inserted_page_count")
    assert made == answered


def test_what_cannot_be_is_refused_in_openais_shape(stage: HttpStage, client: OpenAI) -> None:
    """An impossible request is refused in OpenAI's format, without asking the store."""
    before = stage.counters()
    with pytest.raises(openai.BadRequestError) as long:
        complete(client, "x" * LONGEST)
    assert long.value.code == "context_length_exceeded"
    assert moved(stage, before) == Counter()
    with pytest.raises(openai.NotFoundError) as other:
        client.completions.create(model="gpt", prompt="x")
    assert other.value.code == "model_not_found"
    for name, more in (
        ("temperature", {"temperature": "hot"}),
        ("logprobs", {"logprobs": 1}),
        ("frequency_penalty", {"frequency_penalty": 0.5}),
        ("n", {"n": 100}),
        ("prompt", {"prompt": [{}]}),
        ("prompt", {"prompt": [256]}),
        ("cache_salt", {"extra_body": {"cache_salt": "x" * 200}}),
    ):
        with pytest.raises(openai.BadRequestError) as wrong:
            complete(client, **{"prompt": "x", **more})  # type: ignore[arg-type]
        assert wrong.value.param == name
    headers = {"Authorization": f"Bearer {KEYS['ann']}"}
    url = f"{stage.url}/v1/completions"
    bad = httpx2.post(url, content=b"{no JSON", headers=headers)
    assert (bad.status_code, bad.json()["error"]["code"]) == (400, "invalid_json")
    assert moved(stage, before) == Counter()
    large = httpx2.post(url, content=b" " * (5 << 20), headers=headers)
    assert large.status_code == 413
    assert httpx2.get(f"{stage.url}/nowhere").json()["error"]["code"] == "unknown_url"
    assert moved(stage, before) == Counter()


def test_models_health_and_metrics(stage: HttpStage, client: OpenAI) -> None:
    """The model is listed, health is ok, and metrics count the requests and tokens."""
    assert [each.id for each in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    assert httpx2.get(f"{stage.url}/health").json() == {"status": "ok"}
    done = 'kvstore_worker_http_requests_total{route="/v1/completions",status="200"}'
    before = stage.metric(done), stage.metric("kvstore_worker_generation_tokens_total")
    complete(client, "10 " + TEXT)
    # Both are counted when the answer has gone.
    assert wait_until(lambda: stage.metric(done) == before[0] + 1)
    generated = "kvstore_worker_generation_tokens_total"
    assert wait_until(lambda: stage.metric(generated) == before[1] + 8)
