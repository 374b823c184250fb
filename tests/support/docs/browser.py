"""Debian's Chromium without a window, driven over its DevTools protocol.

Over a pipe that only this process has (--remote-debugging-pipe): no port is open, no driver
program is needed, and the browser ends with its pipe.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "needs Chromium: `make chromium` installs Debian's, as root"
# Chromium reads commands from this descriptor, and writes answers to the other.
COMMANDS, ANSWERS = 3, 4
PATIENCE = 60.0
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    # A container's root has no user namespaces for it; the page is our own.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--mute-audio",
    "--force-color-profile=srgb",
    "--lang=en",
)
KEYS = {
    "Enter": {"code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"},
    "Escape": {"code": "Escape", "windowsVirtualKeyCode": 27},
    "Tab": {"code": "Tab", "windowsVirtualKeyCode": 9},
    "ArrowLeft": {"code": "ArrowLeft", "windowsVirtualKeyCode": 37},
    "ArrowUp": {"code": "ArrowUp", "windowsVirtualKeyCode": 38},
    "ArrowRight": {"code": "ArrowRight", "windowsVirtualKeyCode": 39},
    "ArrowDown": {"code": "ArrowDown", "windowsVirtualKeyCode": 40},
}
Message = dict[str, Any]


def chromium() -> str | None:
    """Returns where the browser is: $KVSTORE_CHROMIUM, or a name that Debian or Google has."""
    named = os.environ.get("KVSTORE_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class BrowserFailed(Exception):
    """The browser refused a command, ended, or did not answer in time."""


class Browser:
    """One tab. ``requests`` are the addresses that it asked for.

    ``complaints`` are what it logged as an error or a warning, exceptions of the page's
    own scripts included.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._commands = commands
        self._answers = answers
        self._received = b""
        self._last = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: object) -> Message:
        """Sends a command and returns what it answers; raises BrowserFailed."""
        self._last += 1
        message: Message = {"id": self._last, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        due = time.monotonic() + PATIENCE
        while True:
            answer = self._read(due)
            if answer.get("id") == self._last:
                break
            self._note(answer)
        if "error" in answer:
            raise BrowserFailed(f"{method}: {answer['error']}")
        found: Message = answer["result"]
        return found

    def open(self, address: str) -> None:
        """Goes to an address; raises BrowserFailed where nothing answers there."""
        answer = self.call("Page.navigate", url=address)
        if answer.get("errorText"):
            raise BrowserFailed(f"{address}: {answer['errorText']}")

    def look(self, expression: str) -> Any:  # noqa: ANN401  # whatever the script returns
        """Returns what a JavaScript expression comes to, once its promise is kept."""
        answer = self.call(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        if "exceptionDetails" in answer:
            raise BrowserFailed(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Waits until a JavaScript expression is true; raises BrowserFailed where it never is."""
        due = time.monotonic() + PATIENCE
        # What is not there yet has no text to look at, and is no failure.
        once = (
            "new Promise((seen) => setTimeout(() => "
            f"{{ try {{ seen(Boolean({condition})); }} catch {{ seen(false); }} }}, 25))"
        )
        while not self._looked(once):
            if time.monotonic() > due:
                text = self.look("document.body.innerText")
                raise BrowserFailed(f"never came: {condition}\n{text}\n{self.complaints}")

    def _looked(self, expression: str) -> object:
        """Returns what it comes to; None where the page went to another while it was looked at."""
        try:
            return self.look(expression)
        except BrowserFailed as error:
            if "navigated" not in str(error):
                raise
            return None

    def press(self, key: str, *, times: int = 1) -> None:
        """Press a key of ``KEYS``."""
        for _ in range(times):
            for kind in ("keyDown", "keyUp"):
                self.call("Input.dispatchKeyEvent", type=kind, key=key, **KEYS[key])

    def click(self, selector: str) -> None:
        """Click in the middle of the first element that a selector finds, scrolled into view."""
        place = self.look(
            f"(() => {{ const it = document.querySelector({json.dumps(selector)});"
            "it.scrollIntoView({block: 'center'}); const box = it.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=place[0],
                y=place[1],
                button="left",
                clickCount=1,
            )

    def resize(self, width: int, height: int) -> None:
        """Be a window of so many pixels; a narrow one is a telephone's."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )

    def prefer(self, scheme: str) -> None:
        """Prefer colours that are ``light`` or ``dark``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def named_nodes(self) -> list[tuple[str, str]]:
        """Returns role and name of all that a reader of the page's accessibility tree is told."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            (each["role"]["value"], each.get("name", {}).get("value", ""))
            for each in nodes
            if not each.get("ignored")
        ]

    def picture(self, path: Path) -> None:
        """Writes all of the page, as it is, into a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        answer = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _read(self, due: float) -> Message:
        while b"\0" not in self._received:
            ready, *_ = select.select([self._answers], [], [], max(due - time.monotonic(), 0))
            data = os.read(self._answers, 1 << 20) if ready else b""
            if not data:
                raise BrowserFailed("the browser ended" if ready else "the browser is silent")
            self._received += data
        line, _, self._received = self._received.partition(b"\0")
        message: Message = json.loads(line)
        return message

    def _note(self, event: Message) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"])[:2000])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(params["args"])[:2000])
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                entry = params["entry"]
                self.complaints.append(f"{entry['text']} {entry.get('url', '')}")


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """Runs a browser whose profile is in ``folder``; raises BrowserFailed where there is none."""
    program = chromium()
    if program is None:
        raise BrowserFailed(MISSING)
    theirs, commands = os.pipe()
    answers, written = os.pipe()
    # Python's child has its own descriptors at these numbers; a shell moves them there.
    script = f'exec "$0" "$@" {COMMANDS}<&{theirs} {ANSWERS}>&{written}'
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", script, program, *FLAGS, f"--user-data-dir={folder / 'profile'}"],
            pass_fds=(theirs, written),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    os.close(theirs)
    os.close(written)
    try:
        yield Browser(commands, answers)
    finally:
        os.close(commands)
        os.close(answers)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
