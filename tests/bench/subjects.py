"""Subjects of measurements, each in a process of its own: none pays for another's garbage.

Called as `python -m bench.subjects NAME URL CA_FILE COUNT`; prints one JSON object.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import ssl
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from bench.measure import Stalls, cpu_us, resident
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.credentials import StaticAccess
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import LEASES, PODS, Pod
from kubeocean.runtime.objects import Key
from kubeocean.runtime.redaction import Secret
from kubeocean.runtime.service import run
from kubeocean.runtime.transport import STREAM_BUFFER, HttpTransport
from kubeocean.runtime.workqueue import WorkQueue

TOKEN = "x" * 900
LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-1"
RENEWAL = {"spec": {"renewTime": "2026-11-15T00:00:10.000000Z"}}
IN_FLIGHT = 32
ROUNDS = 5
Figures = dict[str, float]


def client_of(url: str, ca: bytes) -> Client:
    return Client(HttpTransport(StaticAccess(Access(url, ca=ca, token=Secret(TOKEN)))))


def bare_session(ca: bytes) -> aiohttp.ClientSession:
    tls = ssl.create_default_context(cadata=ca.decode())
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=tls),
        headers={"Authorization": f"Bearer {TOKEN}", "Accept": "application/json"},
        read_bufsize=STREAM_BUFFER,  # as ours, or the comparison would be of buffers
    )


async def watch_ours(url: str, ca: bytes, count: int) -> Figures:
    """Measure our informer: TLS, HTTP, split, decode, cache, index, handler, queue."""

    async def once() -> int:
        client = client_of(url, ca)
        queue: WorkQueue[Key] = WorkQueue("bench")
        done = asyncio.Event()
        delivered = 0

        def enqueue(old: Pod | None, new: Pod | None) -> None:
            nonlocal delivered
            delivered += 1
            queue.add((new or old).key)
            if delivered == count:
                done.set()

        informer = Informer(
            client,
            PODS,
            labels=f"events=0-{count}",
            indexes={"node": lambda pod: (pod.spec.node_name,)},
        )
        informer.on_change(enqueue)
        running = asyncio.create_task(informer.run())
        await done.wait()
        running.cancel()
        await asyncio.wait([running])
        queue.close()
        await client.close()
        return count

    return {"us": await cpu_us(once, rounds=ROUNDS)}


async def watch_bare(url: str, ca: bytes, count: int) -> Figures:
    """Measure the same stream, of which nothing is decoded."""

    async def once() -> int:
        selector = f"labelSelector=events%3D0-{count}"
        target = f"{url}/api/v1/pods?watch=true&sendInitialEvents=true&{selector}"
        async with (
            bare_session(ca) as session,
            session.get(target, timeout=aiohttp.ClientTimeout(None)) as answer,
        ):
            while await answer.content.readany():
                pass
        return count

    return {"us": await cpu_us(once, rounds=2)}


async def watch_official(url: str, ca: bytes, count: int) -> Figures:
    """Measure the asyncio watch of the official client."""
    from kubernetes.aio import client, watch

    file = Path(os.environ["BENCH_DIRECTORY"]) / "official-ca.crt"
    file.write_bytes(ca)

    async def once() -> int:
        settings = client.Configuration(host=url, api_key={"authorization": f"Bearer {TOKEN}"})
        settings.ssl_ca_cert = str(file)
        seen = 0
        async with client.ApiClient(settings) as api, watch.Watch() as watching:
            core = client.CoreV1Api(api)
            async for _ in watching.stream(
                core.list_pod_for_all_namespaces, label_selector=f"events=0-{count}"
            ):
                seen += 1
                if seen == count:
                    break
        return count

    return {"us": await cpu_us(once, rounds=2)}


async def unary(call: Callable[[], Awaitable[object]], count: int) -> float:
    async def once() -> int:
        async def some() -> None:
            for _ in range(count // IN_FLIGHT):
                await call()

        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(some())
        return count // IN_FLIGHT * IN_FLIGHT

    return await cpu_us(once, rounds=ROUNDS)


async def unary_ours(url: str, ca: bytes, count: int) -> Figures:
    client = client_of(url, ca)
    get = await unary(lambda: client.get(LEASES, "node-1", "kube-node-lease"), count)
    patch = MergePatch(RENEWAL)
    change = await unary(lambda: client.patch(LEASES, "node-1", patch, "kube-node-lease"), count)
    await client.close()
    return {"get_us": get, "patch_us": change}


async def unary_bare(url: str, ca: bytes, count: int) -> Figures:
    async with bare_session(ca) as session:

        async def get() -> bytes:
            async with session.get(url + LEASE_PATH) as answer:
                return await answer.read()

        async def patch() -> bytes:
            headers = {"Content-Type": "application/merge-patch+json"}
            async with session.patch(
                url + LEASE_PATH, data=json.dumps(RENEWAL).encode(), headers=headers
            ) as answer:
                return await answer.read()

        return {"get_us": await unary(get, count), "patch_us": await unary(patch, count)}


async def fill(url: str, ca: bytes, count: int, *, keep_raw: bool) -> Figures:
    """Measure memory and stalls while a cache of many pods fills, as at a start."""
    client = client_of(url, ca)
    queue: WorkQueue[Key] = WorkQueue("bench")
    informer = Informer(client, PODS, labels=f"events={count}-0", keep_raw=keep_raw)
    informer.on_change(lambda old, new: queue.add((new or old).key))
    gc.collect()
    before, stalls = resident(), Stalls()
    async with stalls.watched():
        running = asyncio.create_task(informer.run())
        await informer.synced()
    gc.collect()
    held = resident() - before
    assert len(informer) == count
    running.cancel()
    await asyncio.wait([running])
    await client.close()
    return {
        "bytes_per_pod": held / count,
        "gigabytes": held / 1e9,
        "stall_ms": stalls.longest_s * 1e3,
        "stall_cpu_ms": stalls.longest_cpu_s * 1e3,
    }


async def fill_partial(url: str, ca: bytes, count: int) -> Figures:
    return await fill(url, ca, count, keep_raw=False)


async def fill_whole(url: str, ca: bytes, count: int) -> Figures:
    return await fill(url, ca, count, keep_raw=True)


SUBJECTS: dict[str, Callable[[str, bytes, int], Awaitable[Figures]]] = {
    subject.__name__: subject
    for subject in (
        watch_ours, watch_bare, watch_official, unary_ours, unary_bare, fill_partial, fill_whole,
    )
}  # fmt: skip


def main() -> None:
    name, url, ca, count = sys.argv[1:]
    figures: dict[str, Any] = {}

    async def subject() -> int:
        figures.update(await SUBJECTS[name](url, Path(ca).read_bytes(), int(count)))
        return 0

    run(subject)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
