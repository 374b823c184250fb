"""A collector of traces, as far as a program that sends them can tell: OTLP over gRPC."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@dataclass(frozen=True)
class Received:
    """A span: its name, whose it is, and where it stands."""

    service: str
    name: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    attributes: dict[str, int | str]


class Collector(trace_service_pb2_grpc.TraceServiceServicer):  # type: ignore[misc]  # untyped
    """Takes what programs export. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._spans: list[Received] = []

    def Export(  # noqa: N802 - the contract's name
        self,
        request: trace_service_pb2.ExportTraceServiceRequest,
        context: grpc.ServicerContext,
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        """Takes some spans."""
        del context
        with self._mutex:
            for resource in request.resource_spans:
                named = {each.key: each.value for each in resource.resource.attributes}
                service = named["service.name"].string_value
                for scope in resource.scope_spans:
                    self._spans += [_received(service, span) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[Received]:
        """All that came so far."""
        with self._mutex:
            return list(self._spans)

    def paths(self) -> set[tuple[str, ...]]:
        """Returns each span's names, from its trace's first span on."""
        spans = {each.span_id: each for each in self.spans}

        def path(span: Received) -> tuple[str, ...]:
            parent = spans.get(span.parent_id)
            above = () if parent is None else path(parent)
            assert parent is None or parent.trace_id == span.trace_id
            return (*above, f"{span.service}:{span.name}")

        return {path(each) for each in spans.values()}


def _received(service: str, span: object) -> Received:
    return Received(
        service,
        span.name,  # type: ignore[attr-defined]  # untyped
        span.trace_id,  # type: ignore[attr-defined]
        span.span_id,  # type: ignore[attr-defined]
        span.parent_span_id,  # type: ignore[attr-defined]
        {
            each.key: each.value.string_value or each.value.int_value
            for each in span.attributes  # type: ignore[attr-defined]
        },
    )


@contextmanager
def collecting() -> Iterator[tuple[Collector, dict[str, str]]]:
    """Provides a collector, and what a program's environment says of it."""
    collector, server = Collector(), grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield (
            collector,
            {ENDPOINT: f"http://127.0.0.1:{port}", "OTEL_BSP_SCHEDULE_DELAY": "100"},
        )
    finally:
        server.stop(None).wait()
