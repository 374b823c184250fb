"""Traces of real processes at a collector, and the absence of tracing without one."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore_client.testing import RunningStore, running_store, wait_until
from processes.traced_client import PAGE_BYTES, PAGES
from wire.otlp_collector import Collector, collecting

LIMIT = 120.0
SUPPORT = Path(__file__).parents[1] / "support"
TIERS = (
    *("--tier1-bytes", str(3 * PAGES * PAGE_BYTES), "--extent-bytes", str(3 * PAGES * PAGE_BYTES)),
    *("--tier2-bytes", "1MiB", "--tier2-write", "through", "--tier2-match", "promote"),
    *("--verify-rate", "1"),
)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
MODULES = "import sys, {module}; print(*sys.modules)"


def run(*arguments: str, **environment: str) -> str:
    """Runs Python to its end and returns its output."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def came(collector: Collector, *wanted: tuple[str, ...]) -> bool:
    """Waits until a collector has spans of these paths."""
    return wait_until(lambda: set(wanted) <= collector.paths())


@pytest.mark.parametrize("way", ["lanes", "grpc"])
def test_a_trace_leads_from_the_client_to_the_copy(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A trace connects the client's call, the server's call and the copy it waits for."""
    with collecting() as (collector, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with running_store("--log-level", "debug", *TIERS) as store:
            run(str(SUPPORT / "processes" / "traced_client.py"), str(store.runtime_dir), way)
            client, server = "client:", "kvstore-server:"
            acquire = "client:publish", f"{client}client AcquirePrefix", f"{server}AcquirePrefix"
            match = f"{client}again", f"{client}client MatchPrefix", f"{server}MatchPrefix"
            insert = "client:publish", f"{client}client InsertPrefix", f"{server}InsertPrefix"
            copy, verify = (*match, f"{server}copy"), (*match, f"{server}verify")
            # What nobody waits for is a trace of its own.
            alone = (f"{server}copy",)
            assert came(collector, acquire, insert, copy, verify, alone), collector.paths()
            logged(store, collector)


def logged(store: RunningStore, collector: Collector) -> None:
    """Checks that a log line has the id of its trace."""
    ids = re.findall(r"request_id=(\S+)", store.log)
    traces = {each.trace_id.hex() for each in collector.spans}
    assert [each for each in ids if each.startswith("00-") and each.split("-")[1] in traces]


def called(method: str) -> tuple[str, str]:
    """Returns the span names of a call in the worker and in the server."""
    return f"kvstore-worker:client {method}", f"kvstore-server:{method}"


def test_a_request_of_an_engine_is_one_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine's request is one trace of lookup, prefill, save and their calls."""
    with collecting() as (collector, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with running_store() as store:
            request = {"op": "generate", "id": 1, "prompt_ids": list(range(40)), "max_tokens": 2}
            worker = ("-m", "inference_worker", "run", "--model", "tiny")
            done = subprocess.run(
                [sys.executable, *worker, "--runtime-dir", str(store.runtime_dir)],
                input=json.dumps(request) + "\n",
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            worker_ = "kvstore-worker:"
            top = f"{worker_}request"
            assert came(
                collector,
                (top,),
                (top, f"{worker_}lookup", *called("AcquirePrefix")),
                (top, f"{worker_}prefill"),
                (top, f"{worker_}save", *called("InsertPrefix")),
            ), collector.paths()
            [span] = [each for each in collector.spans if each.name == "request"]
            assert span.attributes == {"prompt_tokens": 40, "output_tokens": 2}


def test_a_collector_that_is_not_there_costs_nobody_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With an unreachable collector spans are lost, and requests and stops are not delayed."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with running_store(*TIERS) as store:
        run(str(SUPPORT / "processes" / "traced_client.py"), str(store.runtime_dir), "lanes")
        assert store.stop() == 0


def test_a_span_of_another_process_is_the_parent_of_one_here() -> None:
    """A span's parent comes from the traceparent. An invalid one starts a new trace."""
    code = (
        "from kvstore import tracing\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from opentelemetry import trace\n"
        "trace.set_tracer_provider(TracerProvider())\n"
        f"for remote in ({PARENT!r}, 'nonsense', ''):\n"
        "    span = tracing.begin('request', remote=remote)\n"
        "    print(f'{span.context.trace_id:032x}', span.parent is not None)\n"
    )
    lines = run("-c", code, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9").splitlines()
    assert lines[0] == f"{PARENT.split('-')[1]} True"
    assert [line.split()[1] for line in lines[1:]] == ["False", "False"]


def test_a_span_says_which_error_and_nothing_of_its_text() -> None:
    """A span has an error's class and not its text, which may have paths, names and tokens."""
    code = (
        "from kvstore import tracing\n"
        "from kvstore.errors import LimitExceeded\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from opentelemetry import trace\n"
        "trace.set_tracer_provider(TracerProvider())\n"
        "begun = tracing.begin('request')\n"
        f"ways = tracing.span('a'), tracing.call_span('b', {PARENT!r}), tracing.inside(begun)\n"
        "for way in ways:\n"
        "    try:\n"
        "        with way as span:\n"
        "            raise LimitExceeded(limit='secret', maximum=1, value=2)\n"
        "    except LimitExceeded:\n"
        "        seen = trace.get_current_span().get_span_context().is_valid\n"
        "        print(span.to_json(indent=None), seen)\n"
    )
    lines = run("-c", code, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9").splitlines()
    for line in lines:
        told, _, still_current = line.rpartition(" ")
        span = json.loads(told)
        assert span["status"] == {"status_code": "ERROR", "description": "LimitExceeded"}
        assert span["events"] == []
        assert ("secret" in told, still_current) == (False, "False")
    assert len(lines) == 3


def test_without_a_collector_nothing_of_it_is_imported() -> None:
    """Without a collector nothing of OpenTelemetry is imported, even if it is installed."""
    modules = "kvstore.server, kvstore_client"
    loaded = run("-c", MODULES.format(module=modules), OTEL_EXPORTER_OTLP_ENDPOINT="").split()
    assert "kvstore.tracing" in loaded
    assert [name for name in loaded if name.startswith("opentelemetry")] == []


def test_without_the_packages_a_server_says_so_and_serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A server without OpenTelemetry's packages logs that it cannot trace, and serves."""
    hiding = tmp_path / "sitecustomize.py"
    hiding.write_text(
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *more: (\n"
        "    None if name.startswith('opentelemetry') else find(name, *more))\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with running_store() as store:
        assert "tracing_unavailable" in store.log
