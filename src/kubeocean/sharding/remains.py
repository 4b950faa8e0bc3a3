"""Remains: what a ring leaves behind when the last of its replicas has ended.

Its table stays, so that replicas which start again take up what they had, and so do the Leases of
those that nobody was there to forget. Whoever knows that no replica will start again removes them.
"""

from __future__ import annotations

from kubeocean.errors import Conflict, Forbidden, NotFound
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import CONFIG_MAPS, LEASES
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import ObjectT, Resource
from kubeocean.sharding.heartbeat import MEMBER, may_see
from kubeocean.sharding.names import Names

__all__ = ["remove_remains"]

_log = get_logger(__name__)


async def remove_remains(client: Client, names: Names, namespace: str) -> None:
    """Remove what is left of a ring, as far as we may; nothing if nobody has ever shared.

    :raises ApiError: the server could not be asked.
    """
    try:
        if not await may_see(client, namespace):
            return  # nobody shares here
        # Last of all to go: as long as it is there, another attempt finds the rest.
        table = await client.get(CONFIG_MAPS, names.table, namespace)
        leases = await client.list(LEASES, namespace, labels=names.selects(MEMBER))
        for lease in leases.items:
            await _delete(client, LEASES, lease)
        await _delete(client, CONFIG_MAPS, table)
    except (NotFound, Conflict):
        return  # somebody else removes it, or lives in it
    except Forbidden as error:
        _log.debug("Left ring behind", ring=names.ring, namespace=namespace, error=str(error))
        return
    _log.info("Removed ring", ring=names.ring, namespace=namespace, members=len(leases.items))


async def _delete(client: Client, kind: Resource[ObjectT], found: ObjectT) -> None:
    """Delete it if it is still what we have read."""
    where, version = (found.name, found.namespace), found.resource_version
    await client.delete(kind, *where, uid=found.uid, resource_version=version)
