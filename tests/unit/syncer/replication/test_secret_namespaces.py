"""Caches of sources by namespace, and the requests for namespaces in the status of a binding."""

from __future__ import annotations

from typing import Any

import msgspec

from kubeocean.api.bindings import (
    BindingStatus,
    ClusterBinding,
    RefusedNamespace,
    SecretNamespaces,
)
from kubeocean.runtime.clock import RealClock, VirtualClock
from kubeocean.runtime.controller import After, Done, Outcome
from kubeocean.runtime.kinds import SECRETS
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key, Meta, Untyped
from kubeocean.runtime.watch import Scope
from kubeocean.syncer.replication.secret_namespaces import NamespacedSources, NamespaceRequests


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


class RequestsEnv:
    """Requests for namespaces in a binding that a test holds; `needed` answers `is_needed`."""

    def __init__(self, **state: Any) -> None:
        self.clock = VirtualClock()
        self.metrics = Metrics()
        self.binding_name = "b"
        self.needed: dict[str, bool | None] = {}
        self.handlers: list[Any] = []
        self.binding: ClusterBinding | None = None
        self.bindings = self.computing = self
        sources: NamespacedSources[Untyped] = NamespacedSources(
            Scope(SECRETS),
            lambda namespace: Cache(),
            self.clock,  # type: ignore[arg-type,return-value]
        )
        self.requests = NamespaceRequests(
            self,  # type: ignore[arg-type]
            sources,
            self.needed.get,
        )
        self.show(**state)

    def on_change(self, handler: Any) -> None:
        self.handlers.append(handler)

    async def caught_up(self, key: Key) -> bool:
        return True

    def wrote(self, obj: ClusterBinding) -> None:
        self.show(**msgspec.structs.asdict(obj.status.secret_namespaces))

    async def patch(self, resource: Any, name: str, patch: Any, *, subresource: str) -> Any:
        assert self.binding is not None
        state = self.binding.status.secret_namespaces
        requested = patch.body["status"]["secretNamespaces"]["requested"]
        return self.with_state(
            msgspec.structs.replace(state, requested=tuple(requested) if requested else None)
        )

    @staticmethod
    def with_state(state: SecretNamespaces) -> ClusterBinding:
        status = BindingStatus(secret_namespaces=state)
        return ClusterBinding(metadata=Meta(name="b", uid="u"), status=status)

    def show(self, **state: Any) -> None:
        """Show the binding with these namespaces in the cache."""
        old, self.binding = self.binding, self.with_state(SecretNamespaces(**state))
        for handler in self.handlers:
            handler(old, self.binding)

    @property
    def requested(self) -> tuple[str, ...]:
        assert self.binding is not None
        return self.binding.status.secret_namespaces.requested or ()

    async def reconcile(self) -> Outcome:
        return await self.requests.reconcile(Key("", "b"))


async def test_texts_that_are_no_names_of_namespaces_are_not_requested() -> None:
    env = RequestsEnv()
    for text in ("team", "", "..", "a/b", "x" * 64):
        env.needed[text] = True
        env.requests.request(text)
    await env.reconcile()
    assert env.requested == ("team",)
    assert "is not the name of a namespace" in env.requests.obstacle("a/b")


async def test_a_request_is_decided_again_until_the_caches_show_whether_it_is_needed() -> None:
    env = RequestsEnv(requested=("team",))
    env.needed["team"] = None
    for _ in range(3):
        outcome = await env.reconcile()
        assert isinstance(outcome, After)
        await env.clock.advance(outcome.seconds)
    assert env.requested == ("team",)
    env.needed["team"] = False
    outcome = await env.reconcile()
    if isinstance(outcome, After):
        await env.clock.advance(outcome.seconds)
        outcome = await env.reconcile()
    assert env.requested == ()
    assert isinstance(outcome, Done)


async def test_a_namespace_counts_in_one_state_only() -> None:
    env = RequestsEnv()
    for namespace in ("granted", "refused", "waiting"):
        env.needed[namespace] = True
        env.requests.request(namespace)
    await env.reconcile()
    refused = (RefusedNamespace("refused", "belongs to others"),)
    env.show(requested=env.requested, granted=("granted",), refused=refused)
    counts = [
        env.metrics.value("kubeocean_syncer_secret_namespaces", {"state": state})
        for state in ("granted", "refused", "waiting")
    ]
    assert counts == [1, 1, 1]


async def test_a_refused_request_is_withdrawn_with_its_last_use() -> None:
    """A namespace that is deleted and created again is requested anew, and verified at once."""
    env = RequestsEnv()
    env.needed["team"] = True
    env.requests.request("team")
    await env.reconcile()
    env.show(requested=("team",), refused=(RefusedNamespace("team", "is being terminated"),))
    await env.reconcile()
    assert env.requested == ("team",)
    env.needed["team"] = None
    env.requests.check("team")
    assert isinstance(await env.reconcile(), After)
    assert env.requested == ("team",)
    env.needed["team"] = False
    await env.reconcile()
    assert env.requested == ()
