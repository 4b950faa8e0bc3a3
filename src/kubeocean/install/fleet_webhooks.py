"""Objects by which API servers reach the webhooks of a hub: Service, flags, port, certificate.

The values have the names of KubeFleet's chart. A hub issues its certificates itself and shares them
between its replicas, unless cert-manager does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kubeocean.api.fleet.names import (
    CERT_MANAGER_CERTIFICATE,
    SYSTEM_NAMESPACE,
    WEBHOOK_CERTIFICATE_DIRECTORY,
    WEBHOOK_PORT,
    WEBHOOK_SERVICE,
)
from kubeocean.install.object_parts import named
from kubeocean.runtime.objects import Json

__all__ = ["WebhookValues", "certificate_objects", "mount_certificate", "webhook_service"]

_PORT_NAME: Final = "webhook"
_VOLUME: Final = "webhook-certificate"
_CERT_MANAGER: Final = "cert-manager.io/v1"
_ISSUER: Final = "fleet-selfsigned-issuer"
_LIFE: Final = "2160h"
_RENEW_BEFORE: Final = "720h"


@dataclass(frozen=True, slots=True)
class WebhookValues:
    """Values of a hub's webhooks.

    - `connection`: whether API servers reach the hub by its Service (`service`) or by a URL of that
      Service (`url`).
    - `certificate_secret`: Secret in which cert-manager stores the certificate; empty if the hub
      issues its certificates.
    """

    enabled: bool = True
    service: str = WEBHOOK_SERVICE
    connection: str = "service"
    guard_rail: bool = False
    certificate_secret: str = ""

    @property
    def flags(self) -> list[str]:
        """Flags of the hub for its webhooks."""
        return [
            f"--enable-webhook={_word(self.enabled)}",
            f"--webhook-service-name={self.service}",
            f"--webhook-client-connection-type={self.connection}",
            f"--enable-guard-rail={_word(self.guard_rail)}",
            f"--use-cert-manager={_word(bool(self.certificate_secret))}",
        ]

    @property
    def port(self) -> Json:
        """Port of the hub's container on which webhooks are served."""
        return {"name": _PORT_NAME, "containerPort": WEBHOOK_PORT}


def _word(value: bool) -> str:
    return "true" if value else "false"


def webhook_service(
    values: WebhookValues, selector: dict[str, str], *, labels: dict[str, str]
) -> Json:
    """Return the Service by which API servers reach the webhook servers of all ready replicas."""
    return named(
        "Service",
        "v1",
        values.service,
        namespace=SYSTEM_NAMESPACE,
        labels=labels,
        spec={
            "selector": selector,
            "ports": [{"name": _PORT_NAME, "port": WEBHOOK_PORT, "targetPort": _PORT_NAME}],
        },
    )


def certificate_objects(values: WebhookValues, *, labels: dict[str, str]) -> list[Json]:
    """Return the Issuer and the Certificate from which cert-manager makes the Secret."""
    host = f"{values.service}.{SYSTEM_NAMESPACE}.svc"
    return [
        named(
            "Issuer",
            _CERT_MANAGER,
            _ISSUER,
            namespace=SYSTEM_NAMESPACE,
            labels=labels,
            spec={"selfSigned": {}},
        ),
        named(
            "Certificate",
            _CERT_MANAGER,
            CERT_MANAGER_CERTIFICATE,
            namespace=SYSTEM_NAMESPACE,
            labels=labels,
            spec={
                "secretName": values.certificate_secret,
                "dnsNames": [host, f"{host}.cluster.local"],
                "duration": _LIFE,
                "renewBefore": _RENEW_BEFORE,
                "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
                "issuerRef": {"kind": "Issuer", "name": _ISSUER},
            },
        ),
    ]


def mount_certificate(pod: Json, secret: str) -> None:
    """Mount the Secret of a certificate where the hub in the spec of its pod reads the files.

    The pod starts before cert-manager has created the Secret; the hub is not ready until then.
    """
    source = {"secretName": secret, "optional": True}
    pod["volumes"] = [{"name": _VOLUME, "secret": source}]
    pod["containers"][0]["volumeMounts"] = [
        {"name": _VOLUME, "mountPath": WEBHOOK_CERTIFICATE_DIRECTORY, "readOnly": True}
    ]
