"""A server of vLLM's OpenAI API with an engine's options."""

import json
import sys
from pathlib import Path

from rig.options import EngineOptions
from support.vllm.server import VllmServer

# Said otherwise, or as it is by itself.
GIVEN = frozenset({"model", "disable_log_stats"})


def server_of(log: Path, options: EngineOptions) -> VllmServer:
    """Returns a server, which is not started yet."""
    arguments = []
    given = {k: v for k, v in options.engine_arguments().items() if k not in GIVEN}
    for name, value in given.items():
        flag = "--" + name.replace("_", "-")
        match value:
            case bool():
                arguments.append(flag if value else flag.replace("--", "--no-", 1))
            case dict():
                arguments += [flag, json.dumps(value)]
            case _:
                arguments += [flag, str(value)]
    # As its users have it: the engine in a process of its own.
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    return VllmServer(Path(sys.executable), options.model, log, arguments, environment)
