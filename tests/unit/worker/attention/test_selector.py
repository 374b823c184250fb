"""A model reads pages in place if that is possible, and otherwise says why not."""

import pytest
import torch

from device.kernel_cases import CASES, attend
from inference_worker.attention.gathered import GatheredAttention
from inference_worker.attention.selector import choose_attention, why_no_kernels
from inference_worker.pages.layout import PageLayout

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)
# A head of 6 bytes.
ODD = PageLayout(1, 1, 3, "bfloat16", 16)
PLAIN = PageLayout(1, 1, 64, "bfloat16", 16)


def test_a_cpu_gathers_unless_told() -> None:
    """A CPU gathers by default, because interpreted kernels are no faster."""
    assert choose_attention(PLAIN, CPU) is GatheredAttention
    assert choose_attention(PLAIN, CUDA, "gather") is GatheredAttention


def test_heads_that_no_instruction_moves_are_gathered() -> None:
    """A head that is not a multiple of 16 bytes is gathered, also on a GPU."""
    assert "6" in str(why_no_kernels(ODD))
    assert choose_attention(ODD, CUDA) is GatheredAttention
    with pytest.raises(ValueError, match="16 bytes"):
        choose_attention(ODD, CUDA, "kernel")


def test_without_triton_pages_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are gathered if Triton is absent. Only a request for kernels is an error then."""
    monkeypatch.setattr("inference_worker.attention.selector.find_spec", lambda _: None)
    assert choose_attention(PLAIN, CUDA) is GatheredAttention
    with pytest.raises(ValueError, match="Triton"):
        choose_attention(PLAIN, CUDA, "kernel")


def test_gathering_writes_what_it_reads() -> None:
    """Attending to a step twice reads its own keys from its pages and gives the same answer."""
    case = CASES["pages of seven, a window and a softcap"]
    first, again = attend(case, GatheredAttention), attend(case, GatheredAttention)
    assert torch.equal(first.answer, again.answer)
