"""Sets up the environment of LMCache's server and client, `.venv-peers/lmcache`, once.

lmcache_requirements.txt has LMCache and the imports of its server on a machine without a GPU.
Arguments are passed to pip.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from peers.environment import pip_arguments, set_up

if __name__ == "__main__":
    set_up("lmcache", "LMCache", "Python 3.11 to 3.13", pip_arguments(__doc__))
