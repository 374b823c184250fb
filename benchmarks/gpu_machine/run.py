"""Runs one of the four scripts on a GPU machine: look, prove, measure, again.

It installs the wheels of the bundle, runs each step with a timeout, and writes results as it goes.
``SCRIPT.jsonl`` has a line for each step and each test, and ``SCRIPT.log`` has all their output. At
the end it prints a table. The exit status is 0 whatever the steps found, so read the table.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

# So that imports also work where the project is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu_machine.plans import MINUTES, PLANS, Place
from gpu_machine.results import Results, load_triton, save_triton
from gpu_machine.runner import Runner
from gpu_machine.steps import Outcome

CHECKOUT: Final = Path(__file__).resolve().parents[2]
PATHS: Final = (".", "clients/python", "benchmarks", "tests/support")
# In its own process, since the driver may hang.
PROBE: Final = (
    "from gpu_machine.probes.driver import why_no_device; print(why_no_device() or '', end='')"
)
PROBE_SECONDS: Final = 60
LONGEST_WHY: Final = 90


def install(wheels: Path, site: Path) -> str:
    """Installs wheels into a folder, once, and returns a line about it."""
    names = sorted(path.name for path in wheels.glob("*.whl"))
    if not names:
        return f"no wheels in {wheels}: what is installed is used"
    stamp = site / ".installed"
    if stamp.exists() and stamp.read_text(encoding="utf-8").splitlines() == names:
        return f"{len(names)} wheels are installed in {site}"
    options = ("--quiet", "--no-index", "--no-deps", "--no-compile", "--upgrade")
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(site)]
    done = subprocess.run(  # noqa: S603 - our own arguments
        [*command, *(str(wheels / name) for name in names)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return f"wheels are not installed: {done.stderr.strip().splitlines()[-1:]}"
    stamp.write_text("\n".join(names), encoding="utf-8")
    return f"{len(names)} wheels installed in {site}"


def environment(site: Path, work: Path) -> dict[str, str]:
    """Returns the environment of the steps."""
    paths = [str(site), *(str(CHECKOUT / each) for each in PATHS)]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "TRITON_CACHE_DIR": str(work / "triton"),
        # There is no network: do not wait for one.
        "HF_HUB_OFFLINE": "1",
    }


def missing_device(steps_environment: dict[str, str]) -> str | None:
    """Returns why there is no CUDA device, or None if there is one."""
    command = [sys.executable, "-c", PROBE]
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            command,
            env=steps_environment,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        # The check itself failed: run the steps as if there were a device.
        return None
    return done.stdout or None


def table(outcomes: Sequence[Outcome]) -> str:
    """Returns the outcomes as lines: verdict, seconds, step, why."""
    rows = [
        (each.verdict, f"{each.seconds:.1f}", each.step, each.why[:LONGEST_WHY])
        for each in outcomes
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{verdict:<{widths[0]}}  {seconds:>{widths[1]}} s  {step:<{widths[2]}}  {why}".rstrip()
        for verdict, seconds, step, why in rows
    )


def main() -> int:
    """Runs a script and prints its table."""
    begin = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("script", choices=[*PLANS])
    parser.add_argument("out", type=Path, help="folder for the results")
    parser.add_argument("--minutes", type=float, help="time limit (default: 8, 8, 9, 8)")
    parser.add_argument("--work", type=Path, default=Path("/tmp/kvstore-gpu"))  # noqa: S108 - as documented
    parser.add_argument("--wheels", type=Path, default=CHECKOUT / "gpu-bundle" / "wheels")
    parser.add_argument("--earlier", type=Path, default=CHECKOUT / "gpu-bundle" / "earlier")
    options = parser.parse_args()
    minutes = options.minutes or MINUTES[options.script]
    options.work.mkdir(parents=True, exist_ok=True)
    site, cache = options.work / "site", options.work / "triton"
    results = Results(options.out.resolve(), options.script)
    steps_environment = environment(site, options.work)
    for line in (
        install(options.wheels, site),
        load_triton(cache, options.earlier),
        f"no CUDA device: {missing}"
        if (missing := missing_device(steps_environment))
        else "a CUDA device is there",
    ):
        print(line, flush=True)
        results.record({"kind": "note", "note": line})
    place = Place(checkout=CHECKOUT, work=options.work, earlier=options.earlier)
    runner = Runner(
        results,
        folder=CHECKOUT,
        environment=steps_environment,
        deadline=begin + minutes * 60,
        no_device=missing,
    )
    outcomes = runner.run(PLANS[options.script](place))
    saved = save_triton(cache, results.folder)
    results.record({"kind": "note", "note": saved})
    print(f"\n{table(outcomes)}\n\n{saved}\nresults: {results.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
