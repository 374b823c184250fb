"""What a prefix cache saves: the arithmetic of kvstore-ctl and of the web page.

tests/data/savings.json has cases of it that the tests of both read.
"""

from typing import NamedTuple


class Savings(NamedTuple):
    """Prefill work without a cache and with one.

    ``tokens_without`` and ``tokens_with`` are the prompt tokens computed without and with
    it, ``tokens_saved`` their difference, ``share_saved`` that of ``tokens_without``, 0 to 1.
    ``speed_up_bound`` is how many times sooner all the prefill is done at best, where its
    time grows with its tokens and reuse takes none; None where nothing is left to compute,
    which has no bound. ``seconds_saved`` of prefill; None where no speed is known.
    """

    tokens_without: int
    tokens_with: int
    tokens_saved: int
    share_saved: float
    speed_up_bound: float | None
    seconds_saved: float | None


def prefix_savings(
    shared: int, suffix: int, requests: int, prefill_tokens_per_second: float = 0.0
) -> Savings:
    """Return what ``requests`` prompts of ``shared`` + ``suffix`` tokens save by sharing.

    Tokens are counts: each prompt begins with the same ``shared`` tokens, which the first
    computes and the others find, and ends with ``suffix`` tokens of its own. Without a cache
    that is ``requests * (shared + suffix)`` tokens, with one ``shared + requests * suffix``.
    A speed of 0 tokens a second is not known. Raises ``ValueError`` for a negative number.
    """
    if min(shared, suffix, requests, prefill_tokens_per_second) < 0:
        msg = "tokens, requests and tokens a second are not negative"
        raise ValueError(msg)
    computed = shared + requests * suffix if requests else 0
    return savings_of(requests * (shared + suffix), computed, prefill_tokens_per_second)


def savings_of(
    tokens_without: int, tokens_with: int, prefill_tokens_per_second: float = 0.0
) -> Savings:
    """Return what is saved where so many tokens were asked for and so many were computed.

    A speed of 0 tokens a second is not known. Where nothing was asked for nothing is saved.
    """
    saved = tokens_without - tokens_with
    bound = tokens_without / tokens_with if tokens_with else None
    return Savings(
        tokens_without,
        tokens_with,
        saved,
        saved / tokens_without if tokens_without else 0.0,
        bound if tokens_without else 1.0,
        saved / prefill_tokens_per_second if prefill_tokens_per_second else None,
    )
