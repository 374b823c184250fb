"""Records kvstore-ctl top, tree and doctor beside the demo of the tiny model, as text.

``python docs/recordings/record.py`` writes top.txt, tree.txt and doctor.txt beside this file.
It runs ``kvstore-worker demo --model tiny``, has top look at the demo's store each second, and
the others again and again while it lives. What is kept is the frame with most tokens saved, the last
tree, and the last diagnosis with as many workers as there ever were.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
DEMO = (sys.executable, "-m", "inference_worker", "demo", "--model", "tiny")
CTL = (sys.executable, "-m", "kvstore_ctl")
TOP = ("top", "--count", "600", "--interval", "1")
TREE = ("tree", "--tokenizer", "bytes", "--depth", "6", "--width", "4")
DOCTOR = ("doctor",)
# Seconds: between two looks whether the demo has a store by now, and most that a command takes.
LOOK_SECONDS = 0.5
COMMAND_SECONDS = 60.0


def run(arguments: tuple[str, ...]) -> str:
    """Returns the output of a command; an empty text if it fails."""
    done = subprocess.run(  # noqa: S603  # our own program
        [*CTL, *arguments],
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    return "" if done.returncode else done.stdout


def number(pattern: str, text: str) -> float:
    """Returns the number that a pattern finds; -1 if it finds none."""
    found = re.search(pattern, text)
    return float(found[1]) if found else -1.0


def busiest(frames: str) -> str:
    """Returns the frame with the most saved tokens."""
    return max(frames.split("\n\n"), key=lambda each: number(r"saved a second now (\d+)", each))


def write(file: str, arguments: tuple[str, ...], output: str) -> None:
    """Writes a recording: the command and its output, without facts of this machine."""
    cache = os.environ.get("KVSTORE_CACHE", str(Path.home() / ".cache" / "kvstore"))
    # A model's name is its folder; its cell stays as wide as it was.
    named = re.compile(re.escape(f"{cache}/") + r"(\S+?)(:|  )")
    gap = " " * (len(cache) + 1)
    lines = named.sub(lambda m: m[1] + (gap if m[2] != ":" else "") + m[2], output).splitlines()
    lines = [re.sub(r"/tmp/kvstore-record-\w+/", "/tmp/", line) for line in lines]  # noqa: S108
    shown = "\n".join(line.rstrip() for line in lines).strip()
    typed = f"$ kvstore-ctl {' '.join(arguments)}"
    (HERE / file).write_text(f"{typed}\n{shown}\n", encoding="utf-8")


def store_folder(temporary: Path, demo: "subprocess.Popen[bytes]") -> Path | None:
    """Returns the folder of the demo's store once it exists; None if the demo ends before."""
    while True:
        for socket in temporary.glob("kvstore-*/run/kvstore.sock"):
            return socket.parent
        try:
            demo.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        return None


def record(temporary: Path, demo: "subprocess.Popen[bytes]") -> None:
    """Runs the commands on the demo's store, and writes their output."""
    folder = store_folder(temporary, demo)
    if folder is None:
        return
    os.environ["KVSTORE_RUNTIME_DIR"] = str(folder)
    tree, doctor = "", ""
    with (temporary / "frames").open("w+", encoding="utf-8") as frames:
        top = subprocess.Popen(  # noqa: S603  # our own program
            [*CTL, *TOP], stdout=frames, stderr=subprocess.DEVNULL
        )
        while demo.poll() is None:
            tree = run(TREE) or tree
            diagnosis = run(DOCTOR)
            if number(r"with (\d+) leases", diagnosis) >= number(r"with (\d+) leases", doctor):
                doctor = diagnosis
        top.wait(COMMAND_SECONDS)
        frames.seek(0)
        write("top.txt", TOP, busiest(frames.read()))
    write("tree.txt", TREE, tree)
    write("doctor.txt", DOCTOR, doctor)


def main() -> None:
    """Runs the demo, and writes the recordings. Returns the demo's status."""
    with tempfile.TemporaryDirectory(prefix="kvstore-record-", dir="/tmp") as temporary:
        environment = {**os.environ, "TMPDIR": temporary}
        demo = subprocess.Popen(DEMO, env=environment)  # noqa: S603  # our own program
        try:
            record(Path(temporary), demo)
        finally:
            demo.terminate()
            demo.wait()
    sys.exit(max(demo.returncode, 0))


if __name__ == "__main__":
    main()
