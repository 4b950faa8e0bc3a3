"""The process of a member agent: builds it from its settings and environment, and runs it.

Replicas compete for a Lease in the member's own cluster; the leader acts as the agent. A leader
that loses its Lease exits with code 1, and none of its later writes, to the hub or to the member,
are sent.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from kubeocean.api.fleet.names import member_namespace
from kubeocean.errors import ConfigError
from kubeocean.fleet.agent.agent import MemberAgent
from kubeocean.fleet.agent.collector import Collector
from kubeocean.fleet.agent.hub_access import HeaderTransport, extra_headers, hub_access
from kubeocean.fleet.agent.nodes import AzureOptions, NodeProperties
from kubeocean.fleet.agent.protocols import PropertyProvider
from kubeocean.fleet.agent.tokens import refused_credential
from kubeocean.fleet.applier import WorkApplier
from kubeocean.fleet.extensions import chosen
from kubeocean.fleet.membership.plan import name_problem
from kubeocean.fleet.properties.prices import BUILT_IN, PriceList, read_prices
from kubeocean.fleet.settings import MemberSettings
from kubeocean.process.replicas import Replica
from kubeocean.process.startup import open_client, run_process
from kubeocean.runtime.client import Client
from kubeocean.runtime.components import Component
from kubeocean.runtime.credentials import AccessSource
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.service import Service

__all__ = ["MemberProgram", "run"]

ENV_MEMBER_NAME: Final = "MEMBER_CLUSTER_NAME"
_SERVICE: Final = "fleet-member"
_DEADLINE_S: Final = 20.0  # a kubelet kills the process after 30

_log = get_logger(__name__)


async def run(
    settings: MemberSettings,
    *,
    environ: Mapping[str, str] = os.environ,
) -> int:
    """Run a member agent until a signal arrives; return the exit code."""

    async def prepare(stack: AsyncExitStack) -> Service:
        return MemberProgram(settings, environ, stack).prepare()

    return await run_process("fleet member", settings, prepare, log=_log)


class MemberProgram:
    """Builds the service of one member agent process; `stack` closes its resources at the end."""

    def __init__(
        self,
        settings: MemberSettings,
        environ: Mapping[str, str],
        stack: AsyncExitStack,
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._stack = stack
        self._metrics = Metrics(process=True)

    def prepare(self) -> Service:
        """Build the service of the member agent without sending a request.

        :raises KubeoceanError: a setting, a variable or a file is invalid.
        """
        settings, metrics = self._settings, self._metrics
        if ignored := list(settings.without_effect()):
            _log.warning("Ignored flags without effect", flags=ignored)
        name = self._member_name()
        self._replica = Replica(
            settings,
            _SERVICE,
            self._stack,
            prepared=_nothing,
            metrics=metrics,
            environ=self._environ,
            cluster="member",
        )
        member = self._replica.client(qps=settings.member_api_qps, burst=settings.member_api_burst)
        access = hub_access(settings, self._environ, self._replica.control)
        hub = self._open_hub(access)
        self._health_checks = settings.read_health_checks()
        self._agent = MemberAgent(
            hub,
            member,
            name,
            self._collector(member),
            new_applier=lambda: self._applier(hub, member, name),
            refused=lambda now: refused_credential(access.current(), now),
            instance=self._replica.identity,
            metrics=metrics,
        )
        return Service(
            _SERVICE,
            [Component("agent", self._work, self._ready)],
            metrics=metrics,
            metrics_address=settings.metrics_bind_address,
            secure_metrics=settings.secure_metrics(self._replica.control),
            health_address=settings.health_probe_bind_address,
            deadline_s=_DEADLINE_S,
        )

    def _member_name(self) -> str:
        flag, variable = self._settings.member_name, self._environ.get(ENV_MEMBER_NAME, "")
        name = flag or variable
        if not name:
            raise ConfigError("must be set to the name of the member", source=ENV_MEMBER_NAME)
        if problem := name_problem(name):
            source = "--member-name" if flag else ENV_MEMBER_NAME
            raise ConfigError(problem, source=source, value=name)
        return name

    def _applier(self, hub: Client, member: Client, name: str) -> WorkApplier:
        settings, extensions = self._settings, chosen(self._settings.status_extensions)
        return WorkApplier(
            hub,
            member,
            namespace=member_namespace(name),
            domain=settings.label_domain,
            trackers=extensions.tracker,
            health_checks=extensions.health_checks(self._health_checks),
            backoff=settings.backoff,
            deletion_wait_s=settings.deletion_wait_minutes * 60.0,
            metrics=self._metrics,
        )

    def _open_hub(self, source: AccessSource) -> Client:
        settings = self._settings
        transport = self._replica.fenced(self._replica.observed(source, "hub"))
        if headers := extra_headers(self._environ):
            transport = HeaderTransport(transport, headers)
        return open_client(
            self._stack, transport, "hub", qps=settings.hub_api_qps, burst=settings.hub_api_burst
        )

    def _collector(self, member: Client) -> Collector:
        settings, extensions = self._settings, chosen(self._settings.status_extensions)
        authority = (self._replica.access.ca or b"").decode("utf-8", "replace")
        is_azure = settings.property_provider == "azure"
        options = AzureOptions(
            settings.region,
            settings.use_cost_properties,
            settings.use_available_properties,
            _prices(settings.price_list),
        )
        built_in = NodeProperties(
            member,
            options=options if is_azure else None,
            with_namespaces=is_azure and settings.collect_namespaces,
            extensions=extensions,
            certificate_authority=authority,
            metrics=self._metrics,
        )
        match settings.property_provider:
            case "none" | "":
                return Collector(built_in)
            case "azure":
                return Collector(built_in, built_in)
            case path:
                return Collector(built_in, _load_provider(path)(member))

    async def _work(self) -> None:
        await self._replica.run(self._agent.run)

    def _ready(self) -> bool:
        return self._replica.ready(self._agent.ready)


async def _nothing() -> None:
    """Do nothing: a member agent has no slots to prepare."""


def _prices(path: str) -> PriceList:
    if not path:
        return BUILT_IN
    try:
        return read_prices(Path(path).read_bytes())
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        raise ConfigError(message, source="--price-list", value=path) from None


def _load_provider(path: str) -> Callable[[Client], PropertyProvider]:
    """Import the class of a property provider from its dotted path.

    :raises ConfigError: there is no such module or class.
    """
    source = "--property-provider"
    module, colon, name = path.partition(":")
    if not colon or not module or not name:
        message = "must be none, azure or package.module:Class"
        raise ConfigError(message, source=source, value=path)
    try:
        provider: Callable[[Client], PropertyProvider] = getattr(
            importlib.import_module(module), name
        )
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot be imported: {error}", source=source, value=path) from None
    return provider
