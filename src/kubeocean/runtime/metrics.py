"""Metrics of a program, in one registry of its own.

A component that counts takes a `Metrics` and gets instruments from it by name. The same name, kind,
labels and buckets give the same instrument, so components that exist several times (one informer
for each cluster) share their series; the same name with another kind, labels or buckets is a bug
and raises.

Nothing is kept in prometheus_client's process-wide registry: two programs in one process, or two
tests, never see each other's numbers.

On hot paths resolve the labels once and keep the child:

    self._seconds = metrics.histogram("x_seconds", "How long x took", ["cluster"]).labels(cluster)

Values that a cache has are not kept a second time: `read_gauges` reads the cache at each scrape, so
that series of deleted objects disappear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from kubeocean.errors import InvariantError

__all__ = ["SECONDS", "Counter", "Family", "Gauge", "Histogram", "Metrics", "Readings"]

# Three bounds a decade from 1 ms to 300 s: from a cached decision to a retry with backoff.
SECONDS: Final[tuple[float, ...]] = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300,
)  # fmt: skip

_InstrumentT = TypeVar("_InstrumentT", Counter, Gauge, Histogram)
_Shape = tuple[tuple[str, ...], tuple[float, ...]]  # label names, buckets
_OPENMETRICS: Final = "application/openmetrics-text"


@dataclass(frozen=True, slots=True)
class Family:
    """Name, help text and labels of gauges that are read at each scrape."""

    name: str
    doc: str
    labels: tuple[str, ...] = ()


# For each name the present series: the values of the labels, and the number.
Readings: TypeAlias = Mapping[str, Iterable[tuple[Sequence[str], float]]]


class Metrics:
    """Registry of metrics and its instruments.

    `constant` labels are added to every rendered sample; `process` adds CPU, memory, file
    descriptors and garbage collection of this process.
    """

    def __init__(self, *, constant: Mapping[str, str] | None = None, process: bool = False) -> None:
        self._registry = CollectorRegistry()
        self._constant = dict(constant or {})
        self._instruments: dict[str, tuple[_Shape, Counter | Gauge | Histogram]] = {}
        if process:
            ProcessCollector(registry=self._registry)
            PlatformCollector(registry=self._registry)
            GCCollector(registry=self._registry)

    def counter(self, name: str, doc: str, labels: Iterable[str] = ()) -> Counter:
        """Return the counter of this name, which only grows; rendered as `<name>_total`."""
        names = tuple(labels)
        # prometheus_client takes the name with or without the suffix: both names are one series.
        return self._instrument(
            Counter,
            name.removesuffix("_total"),
            (names, ()),
            lambda: Counter(name, doc, names, registry=self._registry),
        )

    def gauge(self, name: str, doc: str, labels: Iterable[str] = ()) -> Gauge:
        """Return the gauge of this name, which goes up and down."""
        names = tuple(labels)
        return self._instrument(
            Gauge,
            name,
            (names, ()),
            lambda: Gauge(name, doc, names, registry=self._registry),
        )

    def histogram(
        self, name: str, doc: str, labels: Iterable[str] = (), buckets: Sequence[float] = SECONDS
    ) -> Histogram:
        """Return the histogram of this name with these bucket bounds; +Inf is added."""
        names = tuple(labels)
        bounds = tuple(float(bound) for bound in buckets)
        return self._instrument(
            Histogram,
            name,
            (names, bounds),
            lambda: Histogram(name, doc, names, registry=self._registry, buckets=bounds),
        )

    def read_gauges(self, families: Sequence[Family], read: Callable[[], Readings]) -> None:
        """Register gauges that are read together at each scrape.

        `read` is called in another thread than the event loop's: `read` copies values that may
        change meanwhile, and does not block.
        """
        for family in families:
            if clash := self._constant.keys() & set(family.labels):
                raise InvariantError(
                    "metric has a label with the name of a constant label",
                    name=family.name,
                    labels=clash,
                )
        try:
            self._registry.register(_Reader(families, read))
        except ValueError as error:
            names = [family.name for family in families]
            raise InvariantError(f"metrics cannot be created: {error}", names=names) from error

    def value(self, name: str, labels: Mapping[str, str] | None = None) -> float | None:
        """Return the value of one sample (`x_total`, `x_seconds_count`); None if the sample does
        not exist yet."""
        return self._registry.get_sample_value(name, dict(labels or {}))

    def content_type(self, accept: str = "") -> str:
        """Return the Content-Type of `render` for this Accept header."""
        return choose_encoder(_form(accept))[1]

    def render(self, accept: str = "") -> bytes:
        """Render all metrics in the text format, or in OpenMetrics if the Accept header has that
        type."""
        return choose_encoder(_form(accept))[0](self)

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families, as a prometheus_client collector: without `_created`, with the
        constant labels."""
        for family in self._registry.collect():
            kept = Metric(family.name, family.documentation, family.type, family.unit)
            kept.samples = [
                self._labelled(s) for s in family.samples if s.name != f"{family.name}_created"
            ]
            yield kept

    def _labelled(self, sample: Sample) -> Sample:
        if not self._constant:
            return sample
        return sample._replace(labels=self._constant | sample.labels)

    def _instrument(
        self,
        kind: type[_InstrumentT],
        name: str,
        shape: _Shape,
        make: Callable[[], _InstrumentT],
    ) -> _InstrumentT:
        if name not in self._instruments:
            if clash := self._constant.keys() & set(shape[0]):
                raise InvariantError(
                    "metric has a label with the name of a constant label", name=name, labels=clash
                )
            try:
                self._instruments[name] = shape, make()
            except ValueError as error:
                raise InvariantError(f"metric cannot be created: {error}", name=name) from error
        has, instrument = self._instruments[name]
        if has != shape or not isinstance(instrument, kind):
            raise InvariantError(
                "metric was requested with two types or two sets of labels",
                name=name,
                has=(instrument, has),
                asked=shape,
            )
        return instrument


class _Reader(Collector):
    """Collector of gauges that are computed at each scrape."""

    def __init__(self, families: Sequence[Family], read: Callable[[], Readings]) -> None:
        self._families = families
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Return the families without samples; the registry refuses duplicate names."""
        return [GaugeMetricFamily(each.name, each.doc) for each in self._families]

    def collect(self) -> Iterable[Metric]:
        """Return the families with the samples of this scrape."""
        readings = self._read()
        for each in self._families:
            family = GaugeMetricFamily(each.name, each.doc, labels=each.labels)
            for values, number in readings.get(each.name, ()):
                family.add_metric(values, number)
            yield family


def _form(accept: str) -> str:
    # The library parses versions in the header and fails on invalid ones; one version of each
    # format is offered.
    return _OPENMETRICS if _OPENMETRICS in accept else ""
