"""Local: real clusters on this machine, for trying things out and for the tests.

Nothing is imported here: take what you need from its module.

- programs: `assets`, `cache`, `download`, `build`, `toolchain`, `versions`
- control planes: `cluster`, `components`, `layout`, `pki`, `accounts`, `readiness`, `audit`
- simulated nodes: `kwok`
- real nodes: `realnodes`, `nodechecks`, `nodeconfig`, `nodefiles`, `nodenet`, `nodeworld`,
  `worlds`, `cgroups`, `forwarder`, `images`
- our own pods as processes: `processnode`, `podruns`, `podcontainers`, `podprograms`, `podstatus`,
  `podvolumes`, `podaccounts`, `podprobes`, `podlogs`, `loopback`
- oceans: `ocean`, `lifecycle`, `supervisor`, `state`, `product`, `showcase`
- faults: `faults`
- the machine: `process`, `commands`, `ports`, `files`, `locks`, `progress`
"""

__all__: list[str] = []
