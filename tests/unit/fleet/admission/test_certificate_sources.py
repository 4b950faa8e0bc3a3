"""The webhook server's certificate in files that another program maintains."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kubeocean.fleet.admission.certificate_sources import CertificateFiles
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.pki import Authority, Subject
from kubeocean.runtime.server_tls import CertificateTls


def write(directory: Path, authority: Authority, name: str) -> None:
    issued = authority.sign(Subject("webhooks", sans=(name,), server=True))
    (directory / "tls.crt").write_bytes(issued.certificate)
    (directory / "tls.key").write_bytes(issued.private_key)


async def test_new_files_are_used_and_bad_ones_change_nothing(tmp_path: Path) -> None:
    clock = VirtualClock()
    tls, authority = CertificateTls(clock=clock), Authority.create("a", clock=clock)
    task = asyncio.create_task(CertificateFiles(tmp_path, tls, clock=clock).run())

    def names() -> frozenset[str]:
        return tls.certificate.names if tls.certificate is not None else frozenset()

    await clock.advance(1)
    assert not tls.ready  # nothing is there yet
    write(tmp_path, authority, "first")
    await clock.advance(11)
    assert names() == {"first"}
    assert tls.ready
    (tmp_path / "tls.crt").write_bytes(b"half")
    await clock.advance(11)
    assert names() == {"first"}
    write(tmp_path, authority, "second")
    await clock.advance(11)
    assert names() == {"second"}
    task.cancel()
    await asyncio.wait([task])
