"""Units of systemd as tests look at them."""

from pathlib import Path

DEPLOY = Path(__file__).parents[3] / "deploy"
SERVER_UNIT = DEPLOY / "kvstore-server.service"
WORKER_UNIT = DEPLOY / "kvstore-worker.service"
HOLDER_UNIT = DEPLOY / "kvstore-holder.service"


def section_of(unit: Path, section: str = "Service") -> dict[str, list[str]]:
    """Returns a section of a unit: each setting may stand there more than once."""
    settings: dict[str, list[str]] = {}
    text = unit.read_text(encoding="utf-8").split(f"\n[{section}]\n")[1]
    for line in text.split("\n[")[0].splitlines():
        name, given, value = line.partition("=")
        if given and not line.startswith("#"):
            settings.setdefault(name, []).append(value)
    return settings
