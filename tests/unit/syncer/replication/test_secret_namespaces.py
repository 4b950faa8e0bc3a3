"""Caches of sources by namespace, and how objects of a dropped namespace are reported."""

from __future__ import annotations

from typing import Any

from kubeocean.runtime.clock import RealClock
from kubeocean.runtime.kinds import SECRETS
from kubeocean.runtime.objects import Key, Meta, Untyped
from kubeocean.runtime.watch import Scope
from kubeocean.syncer.replication.secret_namespaces import NamespacedSources


class Cache:
    """A cache that a test fills."""

    def __init__(self) -> None:
        self.objects: dict[Key, Untyped] = {}
        self.has_synced = False
        self.handlers: list[Any] = []
        self.listed: list[Any] = []

    def items(self) -> Any:
        return self.objects.values()

    def get(self, key: Key) -> Untyped | None:
        return self.objects.get(key)

    def __len__(self) -> int:
        return len(self.objects)

    def on_change(self, handler: Any) -> None:
        self.handlers.append(handler)

    def on_listed(self, handler: Any) -> None:
        self.listed.append(handler)


def test_namespaces_are_complete_one_by_one_and_a_dropped_one_reports_its_objects() -> None:
    made: dict[str, Cache] = {}

    def make(namespace: str) -> Any:
        made[namespace] = Cache()
        return made[namespace]

    sources: NamespacedSources[Untyped] = NamespacedSources(Scope(SECRETS), make, RealClock())
    changes: list[tuple[str, bool]] = []
    listed: list[str] = []

    def changed(old: Untyped | None, new: Untyped | None) -> None:
        changes.extend((str(obj.key), new is None) for obj in [new or old] if obj is not None)

    sources.on_change(changed)
    sources.on_listed(listed.append)
    sources.set_namespaces(["a", "b"])
    assert sources.namespaces == {"a", "b"}
    assert (sources.unlisted(), sources.has_synced_in("a")) == (2, False)
    secret = Untyped(metadata=Meta(name="s", namespace="a"))
    made["a"].objects[secret.key] = secret
    made["a"].has_synced = True
    made["a"].listed[0]()
    assert listed == ["a"]
    assert sources.has_synced_in("a")
    assert not sources.has_synced_in("b")
    assert (len(sources), list(sources.items()), sources.unlisted()) == (1, [secret], 1)
    assert sources.get(secret.key) is secret
    assert sources.get(Key("c", "s")) is None
    assert changes == []
    sources.set_namespaces(["b"])
    assert changes == [("a/s", True)]
    assert (len(sources), sources.has_synced_in("a")) == (0, False)
    sources.set_namespaces(["a", "b"])
    assert not sources.has_synced_in("a")  # another cache, which has not been listed
