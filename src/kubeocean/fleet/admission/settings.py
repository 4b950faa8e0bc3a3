"""Settings of a hub's admission, as its flags and its environment give them."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from kubeocean.api.fleet.names import CERT_MANAGER_CERTIFICATE, WEBHOOK_CERTIFICATES
from kubeocean.fleet.admission.configurations import WebhookEndpoint, WebhookSet
from kubeocean.fleet.admission.guard_rail import GuardRail
from kubeocean.fleet.admission.policies import PolicyConfig
from kubeocean.runtime.flags import BindAddress
from kubeocean.runtime.objects import Key

__all__ = ["AdmissionSettings", "WebhookSettings"]


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Settings of the webhook server and of its registration.

    - `url`: URL by which API servers reach the server; empty for the Service.
    - `guard_rail`: None if the guard rail is off.
    - `certificate_directory`: files that cert-manager maintains; empty: the hub issues its own.
    - `networking`: whether exported services prevent the deletion of a MemberCluster.
    """

    address: BindAddress
    service: str
    namespace: str
    url: str = ""
    guard_rail: GuardRail | None = None
    ban_workloads: bool = False
    ban_budgets: bool = False
    certificate_directory: str = ""
    networking: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Host names that the webhook server's certificate must be valid for."""
        service = f"{self.service}.{self.namespace}.svc"
        host = urlsplit(self.url).hostname or ""
        return tuple(filter(None, dict.fromkeys((service, f"{service}.cluster.local", host))))

    @property
    def secret(self) -> Key:
        """Namespace and name of the Secret that holds the webhook server's certificates."""
        return Key(self.namespace, WEBHOOK_CERTIFICATES)

    @property
    def annotations(self) -> dict[str, str]:
        """Annotations of webhook configurations: where cert-manager takes the authority from."""
        if not self.certificate_directory:
            return {}
        return {"cert-manager.io/inject-ca-from": f"{self.namespace}/{CERT_MANAGER_CERTIFICATE}"}

    @property
    def webhooks(self) -> WebhookSet:
        """Optional webhooks that the settings enable."""
        return WebhookSet(self.guard_rail is not None, self.ban_workloads, self.ban_budgets)

    def endpoint(self, bundle: bytes | None) -> WebhookEndpoint:
        """Return the address of the webhook server, and `bundle`, the authorities to trust."""
        return WebhookEndpoint(self.service, self.namespace, self.address.port, self.url, bundle)


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """Settings of a hub's webhooks and admission policies; each is None if switched off."""

    webhooks: WebhookSettings | None = None
    policies: PolicyConfig | None = None
