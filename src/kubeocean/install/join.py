"""Binds a worker cluster to the computing cluster.

The objects of the worker are applied first, so that a new ClusterBinding can be connected at once.
Each step can be repeated after an interruption. A valid token is kept until the last third of its
lifetime. A binding cannot be changed to another worker: in another cluster its syncer would find
no pods, and treat all of them as deleted.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

import msgspec

from kubeocean.api.bindings import (
    CLUSTER_BINDINGS,
    BindingSpec,
    ClusterBinding,
    SecretReference,
    problems,
)
from kubeocean.api.group import APP_MANAGED_BY, DEFAULT, LABEL_SERVICE_NAME, Domain
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES, PolicySpec
from kubeocean.errors import ConfigError, NotFound
from kubeocean.install.apply import Applier, ApplyResult
from kubeocean.install.credentials import (
    TokenClaims,
    due,
    kubeconfig,
    kubeconfig_secret,
    read_token,
    secret_name,
    token_request,
)
from kubeocean.install.lease_options import policy
from kubeocean.install.limits import egress_policy
from kubeocean.install.object_parts import labels, named
from kubeocean.install.values import WorkerValues
from kubeocean.install.worker_objects import (
    credential_secret,
    credential_selector,
    withdrawn_objects,
    worker_objects,
)
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import (
    NAMESPACES,
    SECRETS,
    SECRETS_WITH_DATA,
    SERVICE_ACCOUNTS,
    SERVICES,
    SecretWithData,
)
from kubeocean.runtime.objects import Json, Resource, Untyped
from kubeocean.runtime.selectors import check_label_value, check_subdomain
from kubeocean.worker_access.credentials import SecretAccess

__all__ = [
    "NOT_ENFORCED",
    "Join",
    "JoinRequest",
    "Joined",
    "api_servers",
    "identity",
    "join_command",
    "leads_to",
    "policy_holder",
    "two_clusters",
]

NOT_ENFORCED: Final = (
    "the worker's API server has no ValidatingAdmissionPolicies (Kubernetes 1.30): nodes, priority "
    "and grace period of pods are not enforced there"
)
_HELM: Final = "Helm"
_SLICES: Final = Resource(
    "discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", True, Untyped
)
_OPTIONS: Final = {"spec.clusterID": "--cluster-id", "spec.mountNamespace": "--mount-namespace"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """Options of a join; without lease options, the owner of the worker creates policies."""

    name: str
    cluster_id: str = ""
    worker: WorkerValues = field(default_factory=WorkerValues)
    lease: PolicySpec | None = None
    service_namespaces: tuple[str, ...] = ()
    direct_scheduling: bool = False
    node_selector: Json | None = None  # None: all nodes that pods of the mount namespace may use
    priority_class: str = ""  # of physical pods; empty means the domain's own
    shared: bool = False  # whether other computing clusters may use the mount namespace, too
    server: str = ""  # URL at which the computing cluster reaches the worker; empty: as in `access`
    insecure: bool = False  # whether a worker without a verified certificate is accepted

    def __post_init__(self) -> None:
        # Templates insert the name into labels of pods.
        check_label_value(self.name, field="NAME")
        check_subdomain(self.name, field="NAME")
        for problem in problems(self.spec):
            message, source = problem.message, _OPTIONS.get(problem.field, problem.field)
            if source == "--cluster-id" and not self.cluster_id:
                source, message = "NAME", f"{message}; or give another --cluster-id"
            elif problem.field.startswith("spec.serviceNamespaces"):
                source = "--service-namespace"
            raise ConfigError(message, source=source, value=problem.value)
        self.policy()  # raises the problems of the lease before the first write

    @property
    def spec(self) -> BindingSpec:
        domain = self.worker.domain
        return BindingSpec(
            cluster_id=self.cluster_id or self.name,
            secret_ref=SecretReference(secret_name(self.name), domain.system_namespace),
            node_selector=self.node_selector or self.worker.nodes,
            mount_namespace=self.worker.mount_namespace,
            service_namespaces=self.service_namespaces or None,
            direct_scheduling=self.direct_scheduling,
            pod_priority_class_name=self.priority_class,
        )

    def binding(self) -> Json:
        """Return the ClusterBinding to apply."""
        resource = CLUSTER_BINDINGS
        spec: Json = msgspec.to_builtins(self.spec)
        return named(
            resource.kind,
            resource.api_version,
            self.name,
            labels=labels(self.worker.domain),
            spec={field: value for field, value in spec.items() if value != {}},
        )

    def policy(self) -> Json | None:
        """Return the ResourceLeasingPolicy for the worker; None without lease options."""
        if self.lease is None:
            return None
        return policy(self.name, self.lease, domain=self.worker.domain)


def join_command(binding: ClusterBinding, *more: str, domain: Domain = DEFAULT) -> str:
    """Return the command line that repeats the join of a binding.

    FILE in it stands for an administrator's kubeconfig.
    """
    name, spec = binding.name, binding.spec
    words = ["kubeocean", "join", name, "--kubeconfig", "FILE"]
    for flag, value, default in (
        ("--cluster-id", spec.cluster_id, name),
        ("--mount-namespace", spec.mount_namespace, domain.worker_namespace),
        ("--label-domain", domain.name, DEFAULT.name),
    ):
        if value not in ("", default):
            words += [flag, value]
    for namespace in spec.service_namespaces or ():
        words += ["--service-namespace", namespace]
    if spec.direct_scheduling:
        words.append("--direct-scheduling")
    return shlex.join([*words, *more])


Report = Callable[[Json, ApplyResult], None]


@dataclass(frozen=True, slots=True)
class Joined:
    """Result of a join: expiry of the credential, and whether it is new.

    `notes` list limits that the worker does not enforce.
    """

    ends: datetime
    renewed: bool
    notes: tuple[str, ...] = ()


async def identity(applier: Applier) -> str:
    """Return the UID that identifies a cluster, that of its namespace kube-system."""
    return (await applier.client.get(NAMESPACES, "kube-system")).uid


async def api_servers(client: Client) -> tuple[tuple[str, int], ...]:
    """Return the addresses and ports of a cluster's own API servers, as its pods reach them."""
    namespace, name = "default", "kubernetes"
    addresses: set[tuple[str, int]] = set()
    selector = f"{LABEL_SERVICE_NAME}={name}"
    slices = await client.list(_SLICES, namespace, labels=selector, keep_raw=True)
    for each in slices.items:
        content = each.content()
        for endpoint in content.get("endpoints") or ():
            for port in content.get("ports") or ():
                addresses |= {(address, port["port"]) for address in endpoint["addresses"]}
    with suppress(NotFound):
        service = (await client.get(SERVICES, name, namespace, keep_raw=True)).content()["spec"]
        for address in service.get("clusterIPs") or ():
            addresses |= {(address, port["port"]) for port in service.get("ports") or ()}
    return tuple(sorted(addresses))


async def policy_holder(worker: Applier, name: str, domain: Domain) -> str:
    """Return the identity of the computing cluster that the policy `name` lends to.

    Empty if no such policy exists, or no syncer has annotated it yet.
    """
    try:
        stored = await worker.client.get(RESOURCE_LEASING_POLICIES, name)
    except NotFound:
        return ""
    return stored.annotations.get(domain.computing_cluster_id, "")


async def two_clusters(computing: Applier, worker: Applier, access: Access) -> tuple[str, str]:
    """Return the identities of the computing cluster and of the worker.

    :raises ConfigError: both are the same cluster.
    """
    computing_id, worker_id = await identity(computing), await identity(worker)
    if computing_id == worker_id:
        message = "must point to another cluster: this is the computing cluster itself"
        raise ConfigError(message, source="--kubeconfig", value=access.server)
    return computing_id, worker_id


def leads_to(
    binding: ClusterBinding | None,
    secret: SecretWithData | None,
    worker_id: str,
    access: Access,
    domain: Domain,
) -> bool:
    """Whether a binding belongs to the worker of `access`, whose identity is `worker_id`.

    The annotation of the binding decides, or else that of the Secret. Without either, the
    kubeconfigs are compared: a cluster with a new address keeps its CA, and one with a new CA keeps
    its address.
    """
    for stored in (binding, secret):
        if stored is not None and (known := stored.annotations.get(domain.worker_cluster_id, "")):
            return known == worker_id
    if secret is None:
        return True
    try:
        old = SecretAccess(secret).current()
    except ConfigError:
        return True
    return old.server == access.server or old.ca == access.ca


class Join:
    """Binds one worker cluster; `access` is the computing cluster's connection to the worker."""

    def __init__(
        self,
        request: JoinRequest,
        computing: Applier,
        worker: Applier,
        access: Access,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._request = request
        self._values = request.worker
        self._computing = computing
        self._worker = worker
        self._access = replace(access, server=request.server) if request.server else access
        self._clock = clock or RealClock()

    async def run(
        self, report: Report = lambda body, result: None, *, renew: bool = False
    ) -> Joined:
        """Apply all objects in both clusters.

        :raises ConfigError: the clusters are the same, or an object belongs to another binding.
        """
        computing_id, worker_id = await self._check()
        values = self._values = await self._completed()
        await self._worker.apply_all(await self._wanted(values), report)
        for body in reversed(withdrawn_objects(values)):
            if (result := await self._worker.remove(body)) is not ApplyResult.ABSENT:
                report(body, result)
        if (policy := self._request.policy()) is not None:
            report(policy, await self._worker.apply(policy))
        content, claims, renewed = await self._credential(computing_id, report, renew=renew)
        domain = self._values.domain
        ends = f"{claims.ends:%Y-%m-%dT%H:%M:%SZ}"
        secret = kubeconfig_secret(
            self._request.name,
            content,
            ends=ends,
            worker_id=worker_id,
            domain=domain,
            server=self._request.server,
        )
        report(secret, await self._computing.apply(secret))
        binding = self._request.binding()
        report(binding, await self._computing.apply(binding))
        return Joined(claims.ends, renewed, () if values.admission else (NOT_ENFORCED,))

    async def _completed(self) -> WorkerValues:
        """Return the values with facts read from the worker.

        These are its API servers, and whether it has admission policies.
        """
        request = self._request
        classes = (*request.worker.priority_classes, request.priority_class)
        return replace(
            request.worker,
            admission=await self._worker.has_admission_policies(),
            api_servers=await api_servers(self._worker.client),
            priority_classes=tuple(dict.fromkeys(filter(None, classes))),
        )

    async def _wanted(self, values: WorkerValues) -> list[Json]:
        """Return the worker's objects to apply, without an egress policy that Helm manages."""
        objects = worker_objects(values)
        if not values.egress:
            return objects
        egress = egress_policy(values)
        stored = await self._worker.find(egress)
        if stored is None or stored.labels.get(APP_MANAGED_BY) != _HELM:
            return objects
        return [each for each in objects if each != egress]

    async def _check(self) -> tuple[str, str]:
        """Check that the worker may be bound; return the identities of both clusters.

        :raises ConfigError: an object belongs to another binding or cluster.
        """
        computing_id, worker_id = await two_clusters(self._computing, self._worker, self._access)
        try:
            bindings = await self._computing.client.list(CLUSTER_BINDINGS)
        except NotFound:
            message = "the computing cluster has no ClusterBinding CRD; run kubeocean install first"
            raise ConfigError(message) from None
        self._check_tls()
        await self._check_policy(computing_id)
        await self._check_namespace(computing_id)
        for binding in bindings.items:
            cluster_id = binding.spec.cluster_id
            if binding.name == self._request.name:
                _check_same(binding, self._request)
                await self._check_worker(binding, worker_id)
            elif cluster_id == self._request.spec.cluster_id:
                message = f"must be unique: binding {binding.name} has it"
                raise ConfigError(message, source="--cluster-id", value=cluster_id)
        return computing_id, worker_id

    def _check_tls(self) -> None:
        """Check that the worker's certificate is verified, unless `insecure` allows otherwise.

        :raises ConfigError: the worker's certificate would not be verified.
        """
        if self._access.insecure and not self._request.insecure:
            message = (
                "has insecure-skip-tls-verify: an attacker on the network between the clusters"
                " could read the credential and all Secrets of pods; --insecure accepts this"
            )
            raise ConfigError(message, source="--kubeconfig", value=self._access.server)

    async def _check_namespace(self, computing_id: str) -> None:
        """Check that this computing cluster may use the mount namespace.

        :raises ConfigError: the mount namespace belongs to another computing cluster.
        """
        values, key = self._values, self._values.domain.computing_cluster_id
        if self._request.shared:
            return
        anchors = await self._worker.client.list(
            SECRETS, values.mount_namespace, labels=credential_selector(values)
        )
        own = credential_secret(values, self._request.name, computing_id)["metadata"]["name"]
        others = {each.labels.get(key, "") for each in anchors.items} - {computing_id}
        if others and own not in {each.name for each in anchors.items}:
            free = f"{values.domain.worker_namespace}-{computing_id[:8]}"
            message = (
                "is used by another computing cluster, which could read Secrets and enter pods"
            )
            message += f" of this one; choose another such as {free}, or accept this with --shared"
            raise ConfigError(message, source="--mount-namespace", value=values.mount_namespace)

    async def _check_policy(self, computing_id: str) -> None:
        """Check that the policy of the binding's name does not belong to another cluster.

        :raises ConfigError: the policy lends to another computing cluster.
        """
        name = self._request.name
        if self._request.lease is None:
            return
        if await policy_holder(self._worker, name, self._values.domain) not in ("", computing_id):
            message = "policy of that name lends to another computing cluster; choose another name"
            raise ConfigError(f"the worker's {message}", source="NAME", value=name)

    async def _check_worker(self, binding: ClusterBinding, worker_id: str) -> None:
        """Check that an existing binding of this name belongs to the worker.

        :raises ConfigError: the binding of this name is for another cluster.
        """
        secret, domain = await self._secret(), self._values.domain
        if not leads_to(binding, secret, worker_id, self._access, domain):
            name = self._request.name
            message = f"points to another cluster than the one that is bound as {name}"
            message += f"; choose another name, or unbind that one first: kubeocean leave {name}"
            raise ConfigError(message, source="--kubeconfig", value=self._access.server)

    async def _secret(self) -> SecretWithData | None:
        """Return the Secret with the binding's present kubeconfig; None if there is none."""
        name, namespace = secret_name(self._request.name), self._values.domain.system_namespace
        try:
            return await self._computing.client.get(SECRETS_WITH_DATA, name, namespace)
        except NotFound:
            return None

    async def _credential(
        self, computing_id: str, report: Report, *, renew: bool
    ) -> tuple[str, TokenClaims, bool]:
        """Return a kubeconfig for the worker, the claims of its token, and whether that is new."""
        anchor = credential_secret(self._values, self._request.name, computing_id)
        result, stored = await self._worker.put(anchor)
        report(anchor, result)
        if not renew and (kept := await self._kept(stored.uid)) is not None:
            return *kept, False
        response = await self._worker.client.post(
            SERVICE_ACCOUNTS,
            self._values.account,
            "token",
            token_request(stored.name, stored.uid),
            stored.namespace,
        )
        token = response["status"]["token"]
        claims = read_token(token)
        if claims is None:
            ends = datetime.fromisoformat(response["status"]["expirationTimestamp"])
            claims = TokenClaims(self._clock.now(), ends, stored.uid)
        return self._content(token), claims, True

    async def _kept(self, anchor_uid: str) -> tuple[str, TokenClaims] | None:
        """Return the present kubeconfig and its token's claims, if it can be kept.

        None if the server or the CA differs, or the token is to be renewed.
        """
        secret = await self._secret()
        if secret is None:
            return None
        try:
            access = SecretAccess(secret).current()
        except ConfigError:
            return None
        token = access.token.reveal() if access.token is not None else ""
        claims = read_token(token)
        if claims is None or claims.secret_uid != anchor_uid:
            return None
        if due(claims.begins, claims.ends, self._clock.now()):
            return None
        same = (access.server, access.ca) == (self._access.server, self._access.ca)
        return (self._content(token), claims) if same else None

    def _content(self, token: str) -> str:
        return kubeconfig(self._access, token, namespace=self._values.mount_namespace)


def _check_same(stored: ClusterBinding, request: JoinRequest) -> None:
    """Check that the stored binding can be updated by `request`.

    :raises ConfigError: the stored binding is being deleted, or an immutable field differs.
    """
    name, spec = stored.name, request.spec
    if stored.deleting:
        message = f"is being deleted; to wait until it is gone, run: kubeocean leave {name}"
        raise ConfigError(message, source="NAME", value=name)
    for flag, present, requested in (
        ("--cluster-id", stored.spec.cluster_id, spec.cluster_id),
        ("--mount-namespace", stored.spec.mount_namespace, spec.mount_namespace),
    ):
        if present not in ("", requested):
            message = f"cannot be changed: it is {present} for binding {name}"
            raise ConfigError(message, source=flag, value=requested)
