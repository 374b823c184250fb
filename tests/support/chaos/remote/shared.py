"""All that the hosts of a chaos run share: the engine, its faults and what fills it."""

import os
from contextlib import ExitStack
from pathlib import Path

from chaos.remote.overfill import Overfill
from chaos.remote.rig import EngineRig
from chaos.remote.strikes import KINDS, Strikes
from chaos.tally import Tally

# One host's calendar is two days behind.
BEHIND_SECONDS = 2 * 86_400.0
KEY_BYTES = 32


class SharedEngine:
    """A struck and overfilled engine until the stack ends. One thread uses it."""

    def __init__(
        self,
        folder: Path,
        hosts: int,
        tally: Tally,
        stack: ExitStack,
        *,
        seed: int,
        minutes: float,
    ) -> None:
        self._folder = folder
        self._key = folder / "key"
        self._key.touch(mode=0o600)
        self._key.write_bytes(os.urandom(KEY_BYTES))
        log = stack.enter_context((folder / "engine.log").open("ab"))
        self.rig = EngineRig(folder, hosts, log)
        stack.callback(self.rig.close)
        self._overfill = Overfill(self.rig, tally, seed=seed)
        stack.callback(self._overfill.close)
        # Each kind at least once, in a short run too.
        gap = minutes * 60 / (2 * len(KINDS))
        self.strikes = Strikes(self.rig, tally, seed=seed, gap=gap)
        stack.callback(self.strikes.close)

    def settings(self, host: int) -> tuple[str, ...]:
        """Returns the server's arguments on a host."""
        state = self._folder / f"state{host}"
        state.mkdir(mode=0o700, exist_ok=True)
        return (
            *("--remote-url", self.rig.url(host), "--remote-key-file", str(self._key)),
            *("--remote-write", "through", "--remote-trust-uids"),
            *("--remote-state-dir", str(state)),
        )

    def calm(self) -> None:
        """Ends the faults and what fills the engine. Does not wait for the faults."""
        self.strikes.end()
        self._overfill.close()
