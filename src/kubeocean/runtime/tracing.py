"""Tracing with OpenTelemetry: spans around pieces of work.

    with span("reconcile", controller="pods", key=key) as current:
        current.set(outcome="done")

Off unless an OTLP endpoint is given, by setting or by `OTEL_EXPORTER_OTLP_ENDPOINT`. Without an
endpoint, OpenTelemetry is not imported and a span costs one look-up in a dict. With an endpoint,
spans are sent in batches by a thread of the SDK (the extra `tracing`), attributes and errors are
redacted as in logs, and every log line inside a span has its `trace_id`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias
from urllib.parse import urlsplit

from kubeocean.errors import ConfigError
from kubeocean.runtime.logs import bound
from kubeocean.runtime.redaction import redact, redact_text

if TYPE_CHECKING:
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import Tracer

__all__ = ["Span", "configure", "enabled", "span", "trace_headers", "tracer"]

_API: Final = "opentelemetry.trace"
_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_TRACES_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PATH: Final = "/v1/traces"
_FLUSH_MS: Final = 5000  # a collector that does not answer must not delay the end of the process

_Attribute: TypeAlias = str | bool | int | float


class Span(Protocol):
    """Span of a trace: a piece of work that is being measured."""

    def set(self, **attributes: object) -> None:
        """Add attributes to the span."""


def configure(
    service: str,
    *,
    version: str = "",
    instance: str = "",
    endpoint: str = "",
    environ: Mapping[str, str] | None = None,
) -> Callable[[], None]:
    """Send spans to `endpoint` or to the environment's target; return the function that flushes the
    spans.

    That function may take some seconds and belongs in a thread. Without an endpoint, or with a
    tracer provider of the program, nothing happens.
    """
    source, url = _target(endpoint, os.environ if environ is None else environ)
    if not url or enabled():
        return _nothing
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        hint = "pip install 'kubeocean[tracing]', or unset it"
        raise ConfigError(f"tracing is not installed: {hint}", value=url, source=source) from error

    about = {
        "service.name": service,
        "service.version": version,
        "service.instance.id": instance,
    }
    known = {name: value for name, value in about.items() if value}
    provider = TracerProvider(resource=Resource.create(known))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    trace.set_tracer_provider(provider)

    def finish() -> None:
        provider.force_flush(_FLUSH_MS)
        provider.shutdown()

    return finish


def enabled() -> bool:
    """Return whether spans are sent."""
    # A program that sends spans has imported the API first; so has `configure`.
    if _API not in sys.modules:
        return False
    from opentelemetry import trace

    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def tracer(name: str) -> Tracer:
    """Return OpenTelemetry's tracer, for features that `span` lacks."""
    from opentelemetry import trace

    return trace.get_tracer(name)


def span(name: str, /, **attributes: object) -> AbstractContextManager[Span]:
    """Return a span that measures its block; an exception that leaves the block marks the span as
    failed."""
    return _recorded(name, attributes) if enabled() else _OFF


def trace_headers() -> dict[str, str]:
    """Return the W3C headers of the current span; empty outside of a span."""
    if _API not in sys.modules:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers)
    return headers


class _Off:
    """Span of a program that does not trace; one instance serves all spans."""

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the block without recording a span."""

    def set(self, **attributes: object) -> None:
        """Drop the attributes: no span is recorded."""


_OFF: Final = _Off()


class _Recording:
    def __init__(self, recorded: OtelSpan) -> None:
        self._recorded = recorded

    def set(self, **attributes: object) -> None:
        self._recorded.set_attributes(_plain(attributes))


@contextmanager
def _recorded(name: str, attributes: Mapping[str, object]) -> Iterator[Span]:
    from opentelemetry.trace import format_trace_id

    # OpenTelemetry would send the plain text of an error: `_fail` sends it redacted.
    started = tracer("kubeocean").start_as_current_span(
        name,
        attributes=_plain(attributes),
        record_exception=False,
        set_status_on_exception=False,
    )
    with started as recorded, bound(trace_id=format_trace_id(recorded.get_span_context().trace_id)):
        try:
            yield _Recording(recorded)
        except Exception as error:
            _fail(recorded, error)
            raise


def _fail(recorded: OtelSpan, error: Exception) -> None:
    from opentelemetry.trace import Status, StatusCode

    kind, message = type(error).__name__, redact_text(str(error))
    recorded.set_status(Status(StatusCode.ERROR, f"{kind}: {message}"))
    recorded.add_event("exception", {"exception.type": kind, "exception.message": message})


def _plain(attributes: Mapping[str, object]) -> dict[str, _Attribute]:
    """Return attributes as OpenTelemetry accepts them: redacted, and as text unless they are simple
    values."""
    plain: dict[str, _Attribute] = {}
    for name, value in attributes.items():
        shown = redact(value, name=name)
        if shown is not None:
            plain[name] = str(shown) if isinstance(shown, list | dict) else shown
    return plain


def _target(endpoint: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the name of the setting and the URL to which spans are sent, both empty if unset."""
    # The names and their meaning are OpenTelemetry's: an endpoint for traces is used unchanged.
    off = (environ.get("OTEL_SDK_DISABLED"), environ.get("OTEL_TRACES_EXPORTER"))
    choices = [("tracing endpoint", _with_path(endpoint))]
    if off[0] != "true" and off[1] != "none":
        choices.append((_TRACES_ENDPOINT, environ.get(_TRACES_ENDPOINT, "")))
        choices.append((_ENDPOINT, _with_path(environ.get(_ENDPOINT, ""))))
    for source, url in choices:
        if url:
            _check(source, url, environ)
            return source, url
    return "", ""


def _with_path(url: str) -> str:
    base = url.rstrip("/")
    return base if not base or base.endswith(_PATH) else base + _PATH


def _check(source: str, url: str, environ: Mapping[str, str]) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("must be an http:// or https:// URL", value=url, source=source)
    for name in _PROTOCOLS:
        protocol = environ.get(name, "")
        if protocol and protocol != "http/protobuf":
            raise ConfigError("only http/protobuf is supported", value=protocol, source=name)


def _nothing() -> None:
    """Flush nothing, since tracing is off."""
