"""Rollouts in tests: bindings, template directories, and the objects that result on a server."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.group import DEFAULT
from kubeocean.install.apply import resource_of
from kubeocean.install.object_parts import accounts
from kubeocean.install.templates import proxier_files, syncer_files
from kubeocean.install.values import Values
from kubeocean.local.cluster import Cluster
from kubeocean.manager.rollout import Rollout
from kubeocean.manager.rollout_state import RolloutResult
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import DEPLOYMENTS, SERVICES
from kubeocean.runtime.objects import Json, Resource, Untyped, prune_json
from support.background import running
from support.faults import Faults
from support.wait import until

__all__ = [
    "OBJECTS",
    "Mounted",
    "RolloutEnv",
    "binding_body",
    "binding_of",
    "container",
    "go_objects",
    "granting",
    "roll_out",
    "settled",
]

OBJECTS = (DEPLOYMENTS, SERVICES)


def binding_body(name: str, cluster_id: str, **annotations: str) -> Json:
    """Return a binding as a user writes it; the Secret and the namespace need not exist."""
    return {
        "apiVersion": CLUSTER_BINDINGS.api_version,
        "kind": CLUSTER_BINDINGS.kind,
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "clusterID": cluster_id,
            "secretRef": {"name": name, "namespace": "default"},
            "mountNamespace": "kubeocean-worker",
        },
    }


def binding_of(
    name: str = "b1", cluster_id: str = "w1", *, uid: str = "u1", annotations: Json | None = None
) -> ClusterBinding:
    """Return a binding as a server shows it."""
    body = binding_body(name, cluster_id)
    body["metadata"] |= {"uid": uid, "annotations": annotations or {}}
    return msgspec.convert(body, ClusterBinding)


class Mounted:
    """A template directory as a kubelet mounts a ConfigMap: files behind a link that is swapped."""

    def __init__(self, root: Path, files: Mapping[str, str]) -> None:
        self.path = root
        self._version = 0
        root.mkdir(parents=True)
        self.files = dict(files)
        self.write()

    def write(self, **changes: str | None) -> None:
        """Replace files; dots in names are written as two underscores, None removes a file."""
        for name, text in changes.items():
            file = name.replace("__", ".")
            if text is None:
                self.files.pop(file, None)
            else:
                self.files[file] = text
        self._version += 1
        real = self.path / f"..{self._version}"
        real.mkdir()
        for name, text in self.files.items():
            (real / name).write_text(text)
        link = self.path / "..data_tmp"
        link.symlink_to(real.name)
        os.replace(link, self.path / "..data")
        for name in self.files:
            shown = self.path / name
            if not shown.is_symlink():
                shown.symlink_to(Path("..data") / name)

    def scale_to_zero(self) -> None:
        """Change the Deployment so that it is rolled out as soon as its controller observes it."""
        before = self.files["deployment.yaml"]
        after = before.replace("  replicas: 2\n", "  replicas: 0\n")
        assert after != before
        self.write(deployment__yaml=after)

    @classmethod
    def syncers(cls, root: Path, namespace: str = "") -> Mounted:
        """Return our own templates, for syncers in that namespace."""
        plain_files = {"syncerNamespace": namespace} if namespace else {}
        return cls(root, syncer_files(Values()) | plain_files)

    @classmethod
    def proxiers(cls, root: Path, namespace: str = "") -> Mounted:
        """Return our own templates, for proxiers in that namespace."""
        plain_files = {"proxierNamespace": namespace} if namespace else {}
        return cls(root, proxier_files(Values()) | plain_files)


def go_objects(binding: ClusterBinding, namespace: str, *, owned: bool = True) -> list[Json]:
    """Return the objects of the earlier implementation: two Deployments and a Service."""
    cluster_id = binding.spec.cluster_id
    return [
        _go_deployment("syncer", binding, namespace, owned=owned),
        _go_deployment("proxier", binding, namespace, owned=owned),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": _go_metadata(
                f"kubeocean-proxier-{cluster_id}-svc", "proxier", binding, namespace, owned=owned
            ),
            "spec": {
                "type": "ClusterIP",
                "ports": [{"name": "kubelet-api", "port": 10250, "targetPort": "kubelet-api"}],
                "selector": _go_selector("proxier", binding),
            },
        },
    ]


def _go_metadata(
    name: str, component: str, binding: ClusterBinding, namespace: str, *, owned: bool
) -> Json:
    owner = {
        "apiVersion": CLUSTER_BINDINGS.api_version,
        "kind": CLUSTER_BINDINGS.kind,
        "name": binding.name,
        "uid": binding.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name,
        "namespace": namespace,
        "labels": _go_selector(component, binding)
        | {
            "app.kubernetes.io/part-of": "kubeocean",
            "app.kubernetes.io/managed-by": "kubeocean-manager",
            "kubeocean.io/cluster-binding": binding.name,
        },
        "ownerReferences": [owner] if owned else [],
    }


def _go_selector(component: str, binding: ClusterBinding) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": f"kubeocean-{component}",
        "app.kubernetes.io/instance": binding.name,
        "app.kubernetes.io/component": component,
        "k8s-app": f"kubeocean-{component}-{binding.spec.cluster_id}",
    }


def _go_deployment(component: str, binding: ClusterBinding, namespace: str, *, owned: bool) -> Json:
    name = f"kubeocean-{component}-{binding.spec.cluster_id}"
    metadata = _go_metadata(name, component, binding, namespace, owned=owned)
    container = {
        "name": component,
        "image": f"example.org/kubeocean-{component}:v0.1.1",
        "args": [f"--cluster-binding-name={binding.name}", "--zap-log-level=debug"],
        "env": [{"name": "OF_GO", "value": "1"}],
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8081}},
        "volumeMounts": [{"name": "localtime", "mountPath": "/etc/localtime"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": _go_selector(component, binding)},
            "template": {
                "metadata": {"labels": metadata["labels"]},
                "spec": {
                    "serviceAccountName": f"kubeocean-{component}",
                    "terminationGracePeriodSeconds": 10,
                    "containers": [container],
                    "volumes": [{"name": "localtime", "hostPath": {"path": "/etc/localtime"}}],
                },
            },
        },
    }


@dataclass
class RolloutEnv:
    """Template directories, a namespace, and a binding of one test."""

    cluster: Cluster
    client: Client
    namespace: str
    root: Path
    kubeconfig: Path | None = None  # with the permissions of rollouts; None: the administrator's
    syncers: Mounted = field(init=False)
    proxiers: Mounted = field(init=False)
    binding: ClusterBinding = field(init=False)

    def __post_init__(self) -> None:
        self.syncers = Mounted.syncers(self.root / "syncer", self.namespace)
        self.proxiers = Mounted.proxiers(self.root / "proxier", self.namespace)

    async def settle(self) -> None:
        """Create the accounts that templates name, without which no pods are created."""
        for body in accounts(("kubeocean-syncer", "kubeocean-proxier"), self.namespace, labels={}):
            await self.client.create(resource_of(body), body)

    async def bind(self, cluster_id: str = "", **annotations: str) -> ClusterBinding:
        name = f"b-{uuid.uuid4().hex[:8]}"
        body = binding_body(name, cluster_id or f"w{uuid.uuid4().hex[:8]}", **annotations)
        return await self.client.create(CLUSTER_BINDINGS, body)

    def rollout(self, faults: Faults | None = None) -> tuple[Rollout, Client]:
        wrap = faults.wrap if faults else None
        client = self.cluster.client(wrap=wrap, kubeconfig=self.kubeconfig)
        return Rollout(
            client, syncer_templates=self.syncers.path, proxier_templates=self.proxiers.path
        ), client

    @asynccontextmanager
    async def running(self, faults: Faults | None = None) -> AsyncIterator[Rollout]:
        """Yield a rollout that watches, until the end of the block."""
        rollout, client = self.rollout(faults)
        try:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(rollout.run())
                await rollout.synced()
                try:
                    yield rollout
                finally:
                    task.cancel()
        except* AssertionError as failed:
            raise failed.exceptions[0] from None  # raises the assertion of the test
        finally:
            await client.close()

    async def create_go_objects(
        self, binding: ClusterBinding, *, owned: bool = True
    ) -> dict[str, Untyped]:
        """Create the objects of the earlier implementation with its field manager."""
        client = self.cluster.client()
        client.field_manager = "manager"
        made = {}
        for body in go_objects(binding, self.namespace, owned=owned):
            made[body["metadata"]["name"]] = await client.create(resource_of(body), body)
        await client.close()
        return made

    async def names(self) -> list[str]:
        listings = [await self.client.list(each, self.namespace) for each in OBJECTS]
        return sorted(each.name for listing in listings for each in listing.items)

    async def content(self, resource: Resource[Untyped], name: str) -> Json:
        stored = await self.client.get(resource, name, self.namespace, keep_raw=True)
        return stored.content()

    async def deployment(self, component: str) -> Json:
        name = f"kubeocean-{component}-{self.binding.spec.cluster_id}"
        return await self.content(DEPLOYMENTS, name)

    async def state(self) -> list[Json]:
        """Return all objects without the fields that differ from test to test."""
        objects = []
        for resource in OBJECTS:
            listing = await self.client.list(resource, self.namespace, keep_raw=True)
            objects += [normal(each.content()) for each in listing.items]
        return sorted(objects, key=lambda body: str(body["metadata"]["name"]))


def normal(content: Json) -> Json:
    body = prune_json(content)
    annotations = body["metadata"].get("annotations") or {}
    for controllers in ("deployment.kubernetes.io/revision", DEFAULT.rollout_digest):
        annotations.pop(controllers, None)  # the digest holds the binding's UID
    for owner in body["metadata"].get("ownerReferences") or ():
        owner["uid"] = ""
    for given in ("clusterIP", "clusterIPs"):
        body["spec"].pop(given, None)
    return body


@asynccontextmanager
async def granting(client: Client, name: str, root: Path) -> AsyncIterator[None]:
    """Grant the syncer of a binding the namespaces that it requests, as the manager does.

    Unlike a manager, this does not delete the account of a syncer that still runs.
    """
    values = Values()
    rollout = Rollout(
        client,
        syncer_templates=Mounted(root / "syncer", syncer_files(values)).path,
        proxier_templates=Mounted(root / "proxier", proxier_files(values)).path,
    )

    async def grant() -> None:
        await rollout.synced()
        while True:
            binding = await client.get(CLUSTER_BINDINGS, name)
            granted = (await rollout.ensure(binding)).secret_namespaces
            if granted != binding.status.secret_namespaces:
                status = {"secretNamespaces": {"granted": list(granted.granted or ())}}
                patch = MergePatch({"status": status})
                await client.patch(CLUSTER_BINDINGS, name, patch, subresource="status")
            await asyncio.sleep(0.2)  # the events of a manager's cache, in short

    async with running(rollout):
        task = asyncio.create_task(grant())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def roll_out(
    client: Client, binding: ClusterBinding, root: Path, values: Values | None = None
) -> RolloutResult:
    """Apply the objects of a binding once, from our own templates."""
    values = values or Values()
    rollout = Rollout(
        client,
        syncer_templates=Mounted(root / "syncer", syncer_files(values)).path,
        proxier_templates=Mounted(root / "proxier", proxier_files(values)).path,
    )
    async with running(rollout):
        await rollout.synced()
        result = await rollout.ensure(binding)
    assert not result.failed, result
    return result


async def settled(rollout: Rollout, binding: ClusterBinding) -> None:
    """Wait until a reconcile writes nothing."""

    async def quiet() -> bool:
        return not (await rollout.ensure(binding)).written

    await until(quiet)


def container(deployment: Json) -> Json:
    container: Json = deployment["spec"]["template"]["spec"]["containers"][0]
    return container
