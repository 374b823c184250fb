"""The sizes that gpu.py measures, on a GPU and, to try its code, on a CPU."""

from dataclasses import dataclass
from typing import Any

import torch

PAGE_TOKENS = 16
KIB = 1 << 10
MIB = 1 << 20
# The last two are 16 tokens of Gemma 3 270M and of Qwen3-8B, in bfloat16.
TIER_PAGE_BYTES = (32 * KIB, 288 * KIB, 2304 * KIB)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The sizes to measure, in bytes and in tokens, and the numbers of rounds."""

    device: str
    model: str
    open_bytes: tuple[int, ...]
    open_processes: int
    gather_tokens: int
    shared_tokens: tuple[int, ...]
    suffix_tokens: int
    chunk_tokens: int
    rounds: int
    tier_page_bytes: tuple[int, ...]
    tier_rounds: int

    @property
    def store_device(self) -> tuple[str, ...]:
        """The store's arguments that put its pages on the device."""
        return () if self.device == "cpu" else ("--device", self.device)


def make_plan(device: str, model: str | None, *, quick: bool) -> Plan:
    """Chooses sizes for a device. ``model`` is one of the ``SHAPES`` of models.py."""
    if device == "cpu":
        return Plan(
            device=device,
            model=model or "tiny",
            open_bytes=(4 * MIB,),
            open_processes=1,
            gather_tokens=1024,
            shared_tokens=(128, 512),
            suffix_tokens=32,
            chunk_tokens=128,
            rounds=2 if quick else 9,
            tier_page_bytes=(64 * KIB,) if quick else TIER_PAGE_BYTES,
            tier_rounds=3 if quick else 25,
        )
    return Plan(
        device=device,
        model=model or ("1.7b" if quick else "8b"),
        open_bytes=tuple(MIB << n for n in ((8, 12) if quick else (8, 10, 12))),
        open_processes=1,
        gather_tokens=16_384,
        shared_tokens=(2048, 16_384),
        suffix_tokens=128,
        chunk_tokens=2048,
        rounds=3 if quick else 9,
        tier_page_bytes=TIER_PAGE_BYTES,
        tier_rounds=9 if quick else 25,
    )


def device_facts(device: str) -> dict[str, Any]:
    """Returns the facts that the figures depend on besides the machine."""
    facts: dict[str, Any] = {"device": device, "torch": torch.__version__}
    if device != "cpu":
        properties = torch.cuda.get_device_properties(device)
        facts["device"] = properties.name
        facts["device memory"] = f"{properties.total_memory / (1 << 30):.0f} GiB"
        facts["cuda"] = torch.version.cuda
    return facts


def synchronize(device: str) -> None:
    """Waits until the device is done, which a CPU always is."""
    if device != "cpu":
        torch.cuda.synchronize(device)
