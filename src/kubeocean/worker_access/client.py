"""Clients for commands that read a binding's clusters once, the look-up of a binding, and limits
for the answers of a worker."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Final

from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.errors import ConfigError, NotFound
from kubeocean.runtime.client import Client
from kubeocean.runtime.credentials import AccessSource
from kubeocean.runtime.retries import RetryPolicy
from kubeocean.runtime.transport import HttpTransport

__all__ = ["INCOMPLETE_ANSWERS", "LARGEST_ANSWER", "PATIENCE_S", "find_binding", "retrying_client"]

PATIENCE_S: Final = 10.0  # for one request
# Bytes of one answer of the worker; a larger page is requested in parts.
LARGEST_ANSWER: Final = 32 << 20
INCOMPLETE_ANSWERS: Final = 16 << 20  # bytes of incomplete answers and events of the worker


def retrying_client(source: AccessSource, cluster: str, stack: AsyncExitStack) -> Client:
    """Return a client for an interactive command, with short timeouts; the stack closes the
    client."""
    client = Client(
        HttpTransport(source, largest=LARGEST_ANSWER),
        cluster=cluster,
        timeout_s=PATIENCE_S,
        retry=RetryPolicy(attempts=2),
    )
    stack.push_async_callback(client.close)
    return client


async def find_binding(computing: Client, name: str, option: str) -> ClusterBinding:
    """Get the ClusterBinding of this name; `option` is the flag or argument that named it.

    :raises ConfigError: there is no such binding; the message lists the ones that exist.
    """
    try:
        return await computing.get(CLUSTER_BINDINGS, name)
    except NotFound:
        bindings = (await computing.list(CLUSTER_BINDINGS)).items
        names = ", ".join(sorted(each.name for each in bindings)) or "none"
        message = f"there is no such binding; there are: {names}"
        raise ConfigError(message, source=option, value=name) from None
