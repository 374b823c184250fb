"""Sets up the environment of SGLang's prefix caches, `.venv-peers/sglang`, once.

sglang_requirements.txt has SGLang's wheel, with the Python tree and the Rust core, and the imports
of those modules. Arguments are passed to pip.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from peers.environment import pip_arguments, set_up

if __name__ == "__main__":
    set_up("sglang", "SGLang", "Python 3.11", pip_arguments(__doc__))
