"""An installation whose programs run in a management cluster, apart from the computing cluster.

Manager, syncers and proxiers run in the system namespace of the management cluster. Each program
has a kubeconfig of the computing cluster in a Secret there, with the token of its account in the
computing cluster; leader elections, bindings and the kubeconfigs of workers stay in the computing
cluster. In the management cluster the manager may write what it rolls out, syncers may read pods,
for the addresses of proxiers, and all programs may review callers that read metrics.

A credential is of an account that all bindings share (see `computing_objects`): the manager creates
no account for a single binding, because its credential would have to be copied between the clusters
and renewed.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import datetime
from typing import Final

from kubeocean.api import group
from kubeocean.api.group import Domain
from kubeocean.errors import ConfigError, NotFound
from kubeocean.install.apply import Applier, ApplyResult
from kubeocean.install.computing_objects import (
    manager_deployment,
    metrics_reader,
    namespaces,
    program_objects,
    withdrawn_objects,
)
from kubeocean.install.credentials import due, kubeconfig, read_token, token_request
from kubeocean.install.data_files import read_object
from kubeocean.install.object_parts import accounts, granted, labels, title
from kubeocean.install.permissions import Rights, Rule
from kubeocean.install.roles import REVIEWS
from kubeocean.install.templates import computing_secret
from kubeocean.install.values import Values
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import NAMESPACES, SECRETS_WITH_DATA, SERVICE_ACCOUNTS
from kubeocean.runtime.objects import Json
from kubeocean.worker_access.credentials import SecretAccess

__all__ = [
    "OPTION",
    "Credentials",
    "anchors",
    "check_management",
    "credential_secrets",
    "management_objects",
    "other_management",
    "recorded_management",
    "withdrawn_management_objects",
]

OPTION: Final = "--management-kubeconfig"
_COMPONENTS: Final = (group.COMPONENT_MANAGER, group.COMPONENT_SYNCER, group.COMPONENT_PROXIER)
_WRITE: Final = ("get", "list", "watch", "create", "patch", "delete")
_ROLLED_OUT: Final = (
    Rule(("deployments",), _WRITE, "apps"),
    Rule(("services",), _WRITE),
    Rule(("poddisruptionbudgets",), _WRITE, "policy"),
    Rule(("horizontalpodautoscalers",), _WRITE, "autoscaling"),
)
_PROXIER_PODS: Final = (Rule(("pods",), ("list", "watch")),)


def management_objects(values: Values) -> list[Json]:
    """Return the objects of the management cluster, without the Secrets of credentials."""
    domain, namespace, ours = values.domain, values.namespace, labels(values.domain)
    objects = [
        namespaces(values)[0],
        *accounts((domain.manager, domain.syncer, domain.proxier), namespace, labels=ours),
    ]
    for account, within in (
        (domain.manager, {namespace: _ROLLED_OUT}),
        (domain.syncer, {namespace: _PROXIER_PODS}),
        (domain.proxier, {}),
    ):
        rights = Rights(REVIEWS, within)
        objects += granted(account, rights, account=account, namespace=namespace, labels=ours)
    return [*objects, metrics_reader(domain), *program_objects(values)]


def withdrawn_management_objects(values: Values) -> list[Json]:
    """Return the objects of the management cluster that only other values would create."""
    titles = {title(each) for each in management_objects(values)}
    return [each for each in withdrawn_objects(values) if title(each) not in titles]


def anchors(values: Values) -> list[Json]:
    """Return the Secrets of the computing cluster that the programs' tokens are bound to.

    The deletion of such a Secret invalidates the token of one program.
    """
    product = values.domain.product
    return [_secret(values, f"{product}-{component}-management") for component in _COMPONENTS]


def credential_secrets(values: Values) -> list[Json]:
    """Return the Secrets of the management cluster, without the kubeconfigs in them."""
    return [_secret(values, computing_secret(values, component)) for component in _COMPONENTS]


def _secret(values: Values, name: str) -> Json:
    return read_object("program_secret.yaml", domain=values.domain, name=name)


async def recorded_management(computing: Client, domain: Domain) -> str:
    """Return the UID of the management cluster of an installation; "" if it has none."""
    try:
        namespace = await computing.get(NAMESPACES, domain.system_namespace)
    except NotFound:
        return ""
    return namespace.annotations.get(domain.management_cluster_id, "")


def other_management(recorded: str, *, given: str = "", remedy: str = "") -> ConfigError:
    """Return the error that an option does not point to the recorded management cluster."""
    message = f"must point to the cluster {recorded}, in which Kubeocean's programs run{remedy}"
    return ConfigError(message, source=OPTION, value=given or None)


async def check_management(computing: Applier, values: Values, *, computing_id: str) -> None:
    """Refuse to move the programs of an installation from one cluster to another.

    Syncers of both clusters would work on the same bindings.

    :raises ConfigError: the programs run in another cluster, or both clusters are the same.
    """
    if values.management == computing_id:
        message = "points to the computing cluster itself; leave this option out"
        raise ConfigError(message, source=OPTION)
    recorded = await recorded_management(computing.client, values.domain)
    if recorded == values.management:
        return
    remedy = "; to move them, run kubeocean uninstall first"
    if recorded:
        raise other_management(recorded, remedy=remedy)
    if await computing.find(manager_deployment(values)) is not None:
        message = f"Kubeocean's programs run in the computing cluster{remedy}"
        raise ConfigError(message, source=OPTION)


class Credentials:
    """The programs' credentials of the computing cluster, in Secrets of the management cluster.

    `access` is the computing cluster as the management cluster reaches it.

    :raises ConfigError: the computing cluster's certificate would not be verified.
    """

    def __init__(
        self,
        values: Values,
        computing: Applier,
        management: Applier,
        access: Access,
        *,
        clock: Clock | None = None,
    ) -> None:
        if access.insecure:
            message = (
                "has insecure-skip-tls-verify: an attacker on the network between the clusters"
                " could act as Kubeocean's programs; use certificate-authority-data instead"
            )
            raise ConfigError(message, source="--kubeconfig", value=access.server)
        self._values = values
        self._computing = computing
        self._management = management
        self._access = access
        self._clock = clock or RealClock()

    async def put(self, report: Callable[[str, Json, ApplyResult], None]) -> None:
        """Create the Secrets, or renew those whose token expires soon or is for another server."""
        for component, anchor in zip(_COMPONENTS, anchors(self._values), strict=True):
            result, stored = await self._computing.put(anchor)
            report("computing", anchor, result)
            if not await self._is_valid(component, stored.uid):
                secret = await self._new(component, stored.name, stored.uid)
                report("management", secret, await self._management.apply(secret))

    async def _is_valid(self, component: str, anchor_uid: str) -> bool:
        """Whether the stored token is bound to the anchor, is not due, and for the same server."""
        name = computing_secret(self._values, component)
        try:
            secret = await self._management.client.get(
                SECRETS_WITH_DATA, name, self._values.namespace
            )
            access = SecretAccess(secret).current()
        except (NotFound, ConfigError):
            return False
        claims = read_token(access.token.reveal() if access.token is not None else "")
        same = (access.server, access.ca) == (self._access.server, self._access.ca)
        if not same or claims is None or claims.secret_uid != anchor_uid:
            return False
        return not due(claims.begins, claims.ends, self._clock.now())

    async def _new(self, component: str, anchor: str, uid: str) -> Json:
        values, domain = self._values, self._values.domain
        account = f"{domain.product}-{component}"
        response = await self._computing.client.post(
            SERVICE_ACCOUNTS, account, "token", token_request(anchor, uid), values.namespace
        )
        ends = datetime.fromisoformat(response["status"]["expirationTimestamp"])
        content = kubeconfig(self._access, response["status"]["token"], namespace=values.namespace)
        secret = credential_secrets(values)[_COMPONENTS.index(component)]
        secret["metadata"]["annotations"] = {domain.token_expires: f"{ends:%Y-%m-%dT%H:%M:%SZ}"}
        return secret | {
            "data": {group.KUBECONFIG_KEY: base64.b64encode(content.encode()).decode()}
        }
