"""Sets up the environment that SGLang runs in without a GPU, `.venv-sglang`, once.

sglang_requirements.txt has SGLang and what it imports here, each version pinned. SGLang also
imports packages for a GPU, which a CPU engine never calls: stand_ins/ has modules in their
place. They are for tests alone. Arguments are passed to pip.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "support"))

from engine_cases.environment import TREE, EngineEnvironment  # noqa: E402  # found by the path above

STAND_INS = HERE / "stand_ins"
# A line of a .pth file that begins with an import is run by each Python that starts there.
PATH_LINES = f"{STAND_INS}\nimport gpu_modules\n"
SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"
# The plugins of SGLang that its caches and kernels need on a CPU.
METADATA = "Metadata-Version: 2.1\nName: kvstore-sglang-stand-ins\nVersion: 0\n"
PLUGINS = ("cpu_hicache", "cpu_windows", "cpu_delta_rule", "cpu_pinning")
ENTRY_POINTS = "\n".join(
    ["[sglang.srt.plugins]", *(f"{name} = {name}:install" for name in PLUGINS), ""]
)


def add_stand_ins(python: Path) -> None:
    """Makes an environment's Python import the stand-ins, and SGLang find their plugins."""
    found = subprocess.run([str(python), "-Ic", SITE], capture_output=True, text=True, check=True)
    site = Path(found.stdout.strip())
    plugin = site / "kvstore_sglang_stand_ins-0.dist-info"
    plugin.mkdir(exist_ok=True)
    (plugin / "METADATA").write_text(METADATA, encoding="utf-8")
    (plugin / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    (site / "kvstore_sglang_stand_ins.pth").write_text(PATH_LINES, encoding="utf-8")


PINS = HERE / "sglang_requirements.txt"
ENVIRONMENT = EngineEnvironment("SGLang", TREE / ".venv-sglang", PINS, 2, add_stand_ins)

if __name__ == "__main__":
    ENVIRONMENT.main()
