"""Tracing: nothing when off; when on, real spans arrive at a real OTLP receiver, redacted."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.util._once import Once

from kubeocean.errors import ConfigError
from kubeocean.runtime import logs, tracing
from kubeocean.runtime.flags import BindAddress
from kubeocean.runtime.objects import Key
from kubeocean.runtime.server import Server

CANARY = "canary4711canary"
OFF: dict[str, str] = {}


@dataclass
class Collector:
    """Takes spans over HTTP as a collector does."""

    url: str = ""
    paths: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        self.paths.append(request.path)
        self.bodies.append(await request.read())
        return web.Response(body=b"", content_type="application/x-protobuf")

    def spans(self) -> dict[str, dict[str, Any]]:
        actual: dict[str, dict[str, Any]] = {}
        for body in self.bodies:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                about = {a.key: a.value.string_value for a in resource.resource.attributes}
                for scope in resource.scope_spans:
                    for s in scope.spans:
                        values = {
                            a.key: getattr(a.value, a.value.WhichOneof("value") or "")
                            for a in s.attributes
                        }
                        actual[s.name] = {
                            "resource": about,
                            "attributes": values,
                            "trace": s.trace_id.hex(),
                            "id": s.span_id.hex(),
                            "parent": s.parent_span_id.hex(),
                            "status": (s.status.code, s.status.message),
                            "events": [e.name for e in s.events],
                        }
        return actual


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    taker = Collector()
    app = web.Application()
    app.router.add_post("/{path:.*}", taker.take)
    async with Server(app, BindAddress("127.0.0.1", 0)) as server:
        taker.url = f"http://127.0.0.1:{server.address.port}"
        yield taker


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenTelemetry takes a provider once in a process; each test here is such a process."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())


def test_without_an_endpoint_nothing_happens() -> None:
    tracing.configure("x", environ=OFF)()
    assert not tracing.enabled()
    with tracing.span("a", key=1) as span:
        span.set(more=2)
        assert tracing.trace_headers() == {}


def test_while_off_one_span_serves_all() -> None:
    assert tracing.span("a", x=1) is tracing.span("b")


def test_while_off_opentelemetry_is_not_imported() -> None:
    program = (
        "import sys\n"
        "from kubeocean.runtime import tracing\n"
        "finish = tracing.configure('x', environ={})\n"
        "with tracing.span('a'): tracing.trace_headers()\n"
        "finish()\n"
        "print([m for m in sys.modules if m.startswith('opentelemetry')])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
    ],
)
def test_the_environment_can_switch_it_off(environ: dict[str, str]) -> None:
    tracing.configure("x", environ=environ)()
    assert not tracing.enabled()


async def test_spans_arrive_with_their_parents_and_attributes(collector: Collector) -> None:
    finish = tracing.configure(
        "syncer", version="1.2", instance="pod-1", endpoint=collector.url, environ=OFF
    )
    assert tracing.enabled()
    with tracing.span("outer", key=Key("a", "b"), tries=2, nothing=None) as outer:
        with tracing.span("inner", names=["x", "y"]):
            headers = tracing.trace_headers()
        outer.set(outcome="done", fast=True)
    await asyncio.to_thread(finish)

    spans = collector.spans()
    outer_, inner = spans["outer"], spans["inner"]
    assert collector.paths == ["/v1/traces"]
    assert inner["parent"] == outer_["id"]
    assert outer_["attributes"] == {"key": "a/b", "tries": 2, "outcome": "done", "fast": True}
    assert inner["attributes"] == {"names": "['x', 'y']"}
    assert headers["traceparent"].startswith(f"00-{inner['trace']}-{inner['id']}-0")
    received = outer_["resource"]
    assert received["service.name"] == "syncer"
    assert (received["service.version"], received["service.instance.id"]) == ("1.2", "pod-1")
    assert tracing.trace_headers() == {}


async def test_a_failed_span_says_so_without_secrets(collector: Collector) -> None:
    finish = tracing.configure("syncer", endpoint=collector.url + "/v1/traces/", environ=OFF)
    with (
        pytest.raises(ValueError, match="refused"),
        tracing.span("call", token=CANARY, header=f"Bearer {CANARY}"),
    ):
        raise ValueError(f"refused: Bearer {CANARY}")
    await asyncio.to_thread(finish)
    call = collector.spans()["call"]
    code, message = call["status"]
    assert code == 2
    assert str(message).startswith("ValueError: refused: Bearer Secret(")
    assert call["events"] == ["exception"]
    assert CANARY not in repr(collector.bodies)


async def test_log_lines_inside_a_span_have_its_trace_id(collector: Collector) -> None:
    out = io.StringIO()
    restore = logs.configure("json", "info", out)
    finish = tracing.configure(
        "syncer", environ={"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/custom"}
    )
    with tracing.span("work"):
        logs.get_logger("x").info("Inside")
    logs.get_logger("x").info("Outside")
    await asyncio.to_thread(finish)
    restore()
    reported = {line["msg"]: line for line in map(json.loads, out.getvalue().splitlines())}
    assert reported["Inside"]["trace_id"] == collector.spans()["work"]["trace"]
    assert "trace_id" not in reported["Outside"]
    assert collector.paths == ["/custom"]


async def test_a_provider_that_is_there_already_stays(collector: Collector) -> None:
    finish = tracing.configure("one", endpoint=collector.url, environ=OFF)
    tracing.configure("two", endpoint="http://127.0.0.1:9", environ=OFF)()
    with tracing.span("work"):
        pass
    await asyncio.to_thread(finish)
    assert collector.spans()["work"]["resource"]["service.name"] == "one"


def test_the_tracer_is_opentelemetrys_own() -> None:
    assert isinstance(tracing.tracer("x"), trace.Tracer)


def test_headers_are_not_sought_where_the_api_was_never_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert not tracing.enabled()
    assert tracing.trace_headers() == {}


def test_a_missing_sdk_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"OTEL_EXPORTER_OTLP_ENDPOINT.*kubeocean\[tracing\]"):
        tracing.configure("x", environ={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"})


@pytest.mark.parametrize(
    ("environ", "reported"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317"}, "OTEL_EXPORTER_OTLP_ENDPOINT.*URL"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://"}, "OTEL_EXPORTER_OTLP_ENDPOINT.*URL"),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            },
            "OTEL_EXPORTER_OTLP_PROTOCOL.*http/protobuf.*grpc",
        ),
    ],
)
def test_a_wrong_setting_is_an_error(environ: dict[str, str], reported: str) -> None:
    with pytest.raises(ConfigError, match=reported):
        tracing.configure("x", environ=environ)
