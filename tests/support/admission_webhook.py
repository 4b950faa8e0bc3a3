"""An admission webhook for tests: a real server that denies or changes pods, or does not answer."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aiohttp import web

from kubeocean.local.pki import LocalAuthority, Subject
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import Untyped
from kubeocean.runtime.objects import Json, Resource
from support.servers import unused

__all__ = ["Webhook", "guarding"]

_GROUP: Final = "admissionregistration.k8s.io"
_VALIDATING: Final = Resource(
    _GROUP,
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    False,
    Untyped,
)
_MUTATING: Final = Resource(
    _GROUP, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", False, Untyped
)


@dataclass
class Webhook:
    """Webhook that denies new pods of a namespace with a message; an empty message allows them."""

    refusal: str = ""
    requests: int = 0
    deaf: bool = False  # it answers with nothing that makes sense
    changes: list[Json] = field(default_factory=list)  # a JSON patch, if the webhook is mutating

    async def review(self, request: web.Request) -> web.Response:
        requested: Json = await request.json()
        self.requests += 1
        if self.deaf:
            return web.Response(status=503)
        answer: Json = {"uid": requested["request"]["uid"], "allowed": not self.refusal}
        if self.refusal:
            answer["status"] = {"message": self.refusal}
        elif self.changes:
            patch = base64.b64encode(json.dumps(self.changes).encode()).decode()
            answer |= {"patchType": "JSONPatch", "patch": patch}
        kind = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        return web.json_response(kind | {"response": answer})


@asynccontextmanager
async def guarding(
    client: Client,
    namespace: str,
    *,
    resource: str = "pods",
    directory: Path,
    mutating: bool = False,
) -> AsyncIterator[Webhook]:
    """Register the webhook for creates of that kind in the namespace."""
    configurations = _MUTATING if mutating else _VALIDATING
    webhook, authority, port = Webhook(), LocalAuthority.create("webhooks"), unused()
    authority.issue(Subject("webhook", (), ("127.0.0.1",), server=True)).save(directory, namespace)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(directory / f"{namespace}.crt", directory / f"{namespace}.key")
    app = web.Application()
    app.router.add_post("/", webhook.review)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
    authority_pem = base64.b64encode(authority.certificate).decode()
    made = await client.create(
        configurations, _configuration(namespace, resource, port, authority_pem)
    )
    try:
        yield webhook
    finally:
        await client.delete(configurations, made.name, uid=made.uid)
        await runner.cleanup()


def _configuration(namespace: str, resource: str, port: int, authority: str) -> Json:
    only = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": [resource],
    }
    return {
        "metadata": {"name": f"{namespace}.example.com"},
        "webhooks": [
            {
                "name": "door.example.com",
                "clientConfig": {"url": f"https://127.0.0.1:{port}/", "caBundle": authority},
                "rules": [rule],
                "namespaceSelector": only,
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "timeoutSeconds": 5,
                "admissionReviewVersions": ["v1"],
            }
        ],
    }
