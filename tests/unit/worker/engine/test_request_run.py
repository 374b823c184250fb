"""The times that one request records."""

import pytest

from engines.heard import Heard
from engines.sequence_rig import SequenceRig
from inference_worker.engine.request import Request
from inference_worker.engine.request_run import RequestRun


def test_waits_before_it_runs_are_no_part_of_how_long_its_prompt_takes() -> None:
    """A prompt's time excludes the store's calls, such as those to see what another computes."""
    ids = [1, 2, 3]
    request = Request(prompt_ids=ids, max_tokens=2)
    run = RequestRun(1, request, list(ids), Heard(), pytest.fail)
    run.generation.store_seconds = 1000.0
    run.open(SequenceRig(None).open(ids))
    run.say(4)
    assert 0 < run.seconds_of_prompt < 1000
    run.give_back(publish=False)
    assert 0 < run.seconds_of_prompt < 1000
