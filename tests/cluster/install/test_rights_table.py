"""Tests that each account has the rights on the page of rights, and no others.

Every verb on every resource of an API server is checked by SubjectAccessReview.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.group import DEFAULT
from kubeocean.api.policies import PolicySpec
from kubeocean.install.access_reviews import granted_to
from kubeocean.install.apply import Applier
from kubeocean.install.join import Join, JoinRequest
from kubeocean.install.permissions import Permission
from kubeocean.install.rights_page import BINDING, GRANTED, LEASE, MOUNT, SECRET
from kubeocean.install.values import WorkerValues
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import NODES, PODS
from kubeocean.runtime.kubeconfig import load_kubeconfig
from support.pod_env import make_namespace, usable
from support.rollout_env import roll_out

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "rights.md"
SYSTEM = DEFAULT.system_namespace
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
# Verbs of RBAC that discovery does not list, with their resources.
SPECIAL = (
    Permission("bind", "rbac.authorization.k8s.io", "roles"),
    Permission("bind", "rbac.authorization.k8s.io", "clusterroles"),
    Permission("escalate", "rbac.authorization.k8s.io", "roles"),
    Permission("escalate", "rbac.authorization.k8s.io", "clusterroles"),
    Permission("impersonate", "", "users"),
    Permission("impersonate", "", "groups"),
    Permission("impersonate", "", "serviceaccounts"),
    Permission("approve", "certificates.k8s.io", "signers"),
    Permission("sign", "certificates.k8s.io", "signers"),
)
# Permissions that Kubernetes grants to all authenticated users.
EVERYBODY = {
    Permission("create", "authorization.k8s.io", "selfsubjectaccessreviews"),
    Permission("create", "authorization.k8s.io", "selfsubjectrulesreviews"),
    Permission("create", "authentication.k8s.io", "selfsubjectreviews"),
}
READER = {
    Permission(verb, "", "configmaps", "kube-system", "extension-apiserver-authentication")
    for verb in ("get", "list", "watch")
}


def documented(section: str, names: dict[str, str]) -> set[Permission]:
    """Return the permissions in a section of the page, with real names for placeholders."""
    text = PAGE.read_text(encoding="utf-8")
    for placeholder, name in names.items():
        text = text.replace(placeholder, name)
    (content,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    permissions = set()
    for line in content.splitlines():
        if not line.startswith("| ") or line.startswith("| in namespace"):
            continue
        cells = [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
        namespace, group, resources, only, verbs = cells
        permissions |= {
            Permission(
                verb,
                "" if group == "core" else group,
                resource,
                "" if namespace == "all" else namespace,
                name,
            )
            for resource in resources.split(", ")
            for verb in verbs.split(", ")
            for name in only.split(", ")
        }
    assert permissions
    return permissions


async def everything(client: Client, namespaces: Iterable[str]) -> list[Permission]:
    """Return every verb on every resource of the server, everywhere and in these namespaces."""
    paths = {"": "/api/v1"}
    for each in (await client.request_json("GET", "/apis"))["groups"]:
        paths[each["name"]] = f"/apis/{each['preferredVersion']['groupVersion']}"
    permissions = list(SPECIAL)
    for group, path in paths.items():
        for resource in (await client.request_json("GET", path))["resources"]:
            where = ("", *namespaces) if resource["namespaced"] else ("",)
            permissions += [
                Permission(verb, group, resource["name"], namespace)
                for verb in VERBS
                for namespace in where
            ]
    return permissions


@dataclass(frozen=True)
class Account:
    """A service account, and its rights on the page."""

    namespace: str
    name: str
    permissions: set[Permission]

    async def check(self, client: Client, questions: list[Permission]) -> None:
        """Compare the answers of access reviews with the page."""
        named = {each for each in self.permissions if each.name}
        others = {each._replace(name="somebody-elses") for each in named}
        account = f"{self.namespace}:{self.name}"
        anywhere = [each for each in questions if not each.namespace]
        granted = set(await granted_to(client, account, anywhere))
        # A right in all namespaces is a right in each namespace.
        rest = [
            each
            for each in questions
            if each.namespace and each._replace(namespace="") not in granted
        ]
        permissions = {*anywhere, *rest, *named, *others}
        granted |= set(await granted_to(client, account, [*rest, *named, *others]))
        assert set(map(str, granted)) == {str(each) for each in permissions if self._covers(each)}

    def _covers(self, permission: Permission) -> bool:
        """Whether the page grants a permission, for all names or namespaces too."""
        forms = (permission, permission._replace(name=""), permission._replace(namespace=""))
        known = self.permissions | EVERYBODY
        return bool(known & {*forms, permission._replace(name="", namespace="")})


async def run_pod(client: Client, binding: str, cluster_id: str, namespace: str) -> None:
    """Create a virtual node of a binding, and a pod on it in a namespace of its own."""
    node = f"vnode-{cluster_id}-n1"
    labels = {DEFAULT.cluster_binding: binding, DEFAULT.physical_cluster_id: cluster_id}
    metadata = {"name": node, "labels": labels, "finalizers": [DEFAULT.finalizer_vnode]}
    await client.create(NODES, {"metadata": metadata})
    await make_namespace(client, namespace)
    await usable(client, namespace)
    spec = {"nodeName": node, "containers": [{"name": "c", "image": "none"}]}
    await client.create(PODS, {"metadata": {"name": "p", "namespace": namespace}, "spec": spec})


async def test_accounts_have_the_rights_of_the_page_and_no_others(
    computing_applier: Applier,
    worker_applier: Applier,
    worker_cluster: Cluster,
    tmp_path: Path,
) -> None:
    name = f"j{uuid.uuid4().hex[:8]}"
    worker = WorkerValues(namespace=f"m-{name}")
    request = JoinRequest(name=name, worker=worker, lease=PolicySpec(name), direct_scheduling=True)
    kubeconfig = load_kubeconfig(worker_cluster.kubeconfig)
    await Join(request, computing_applier, worker_applier, kubeconfig).run()
    client = computing_applier.client
    cluster_id = (await client.get(CLUSTER_BINDINGS, name)).spec.cluster_id
    granted, other = f"granted-{name}", f"other-{name}"
    await run_pod(client, name, cluster_id, granted)
    await make_namespace(client, other)
    request = {"secretNamespaces": {"requested": [granted, other, "kube-system", SYSTEM]}}
    patch = MergePatch({"status": request})
    binding = await client.patch(CLUSTER_BINDINGS, name, patch, subresource="status")
    result = await roll_out(client, binding, tmp_path)
    assert result.secret_namespaces.granted == (granted,)

    names = {
        BINDING: name,
        SECRET: binding.spec.secret_ref.name,
        LEASE: f"kubeocean-syncer-{cluster_id}",
        MOUNT: worker.mount_namespace,
        GRANTED: granted,
    }
    namespaces = (
        SYSTEM, "kube-node-lease", DEFAULT.host_port_namespace, "default", "kube-system",
        granted, other,
    )  # fmt: skip
    questions = await everything(client, namespaces)
    for section, account in (
        ("The manager", "kubeocean-manager"),
        ("The syncers of a binding", f"kubeocean-syncer-{cluster_id}"),
        ("The proxiers of a binding", f"kubeocean-proxier-{cluster_id}"),
        ("The shared account of syncers", "kubeocean-syncer"),
        ("The shared account of proxiers", "kubeocean-proxier"),
    ):
        permissions = documented(section, names) | READER
        await Account(SYSTEM, account, permissions).check(client, questions)

    mount = worker.mount_namespace
    questions = await everything(worker_applier.client, (mount, "default", "kube-system"))
    for section, account in (
        ("The account in a worker", "kubeocean-syncer"),
        ("The account of metrics in a worker", "kubeocean-metrics"),
    ):
        permissions = documented(section, names)
        await Account(mount, account, permissions).check(worker_applier.client, questions)
