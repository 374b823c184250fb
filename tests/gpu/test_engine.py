"""The engine on pages of a device: what is matched there gives the tokens of a cold run."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from engines.engine_world import OUTPUT_TOKENS, EngineWorld, Judge
from inference_worker.attention.selector import AttentionKind
from inference_worker.demo.reference import load_reference
from inference_worker.model.model import load_model, model_folder
from inference_worker.model.names import DtypeName
from inference_worker.model.tiny import TINY_MODELS
from kvstore_client.testing import RunningStore

DEVICE = "cuda:0"
STORE = ("--device", DEVICE, "--tier1-bytes", "512MiB", "--extent-bytes", "64MiB")
# Less than what ends any test, so that a demo that hangs is stopped and not left behind.
PATIENCE = 240.0


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Gives this process, and those that it starts, a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVSTORE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


pytestmark = pytest.mark.store(*STORE)


def numbers(length: int, seed: int) -> list[int]:
    """Returns always the same random bytes."""
    made = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (length,), generator=made).tolist()


@pytest.mark.parametrize("attention", ["kernel", "gather"])
@pytest.mark.parametrize("name", sorted(TINY_MODELS))
def test_a_hit_gives_the_tokens_of_a_cold_run(
    store: RunningStore, name: str, attention: AttentionKind
) -> None:
    """Two workers share a document on the device, and both are stock transformers in float32."""
    model = load_model(f"tiny-{name}", device=DEVICE, dtype="float32", attention=attention)
    judge = Judge({name: load_reference(model_folder(f"tiny-{name}"), DEVICE)})
    seed = sorted(TINY_MODELS).index(name) * 10 + (attention == "kernel")
    document = numbers(400, 1000 + seed)
    with (
        EngineWorld(model, store.runtime_dir) as one,
        EngineWorld(model, store.runtime_dir) as two,
    ):
        for world in (one, two):
            world.wait_open()
        first = one.generate(document + numbers(20, seed))
        assert first.matched_tokens == 0
        for world, question in ((two, numbers(33, seed + 100)), (one, numbers(9, seed + 200))):
            prompt = document + question
            hit = world.generate(prompt)
            alone = world.generate(prompt, use_store=False)
            assert hit.matched_tokens >= 400
            assert hit.store_failure is None
            assert len(hit.output_ids) == OUTPUT_TOKENS
            assert judge.identical(name, prompt, hit.output_ids)
            assert judge.identical(name, prompt, alone.output_ids)
    assert judge.near_ties <= 1


@pytest.mark.parametrize("attention", ["kernel", "gather"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", sorted(TINY_MODELS))
def test_models_pass_their_self_check(
    name: str, dtype: DtypeName, attention: AttentionKind
) -> None:
    """In halves of a word too, the logits are the plain forward's but for rounding."""
    model = load_model(f"tiny-{name}", device=DEVICE, dtype=dtype, attention=attention)
    assert model.layout(16).dtype == dtype


def test_the_demo_shows_on_the_device_what_it_promises() -> None:
    """A store and two workers on the device, stock transformers beside: all tokens the same."""
    command = [sys.executable, "-m", "inference_worker", "demo", "--device", DEVICE]
    result = subprocess.run(
        [*command, "--model", "tiny", "--json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    assert all(row["identical"] for row in report["requests"])
    assert report["slots_leaked"] == report["pins_leaked"] == 0
