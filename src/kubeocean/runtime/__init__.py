"""Runtime: Kubernetes machinery that knows nothing of leasing.

Nothing is imported here: take what you need from its module.

- time: `clock`, `deadlines`, `localzone`
- values: `objects`, `kinds`, `quantity`, `labels`, `requirements`, `selectors`, `fieldselectors`,
  `nodeselectors`, `documents`, `fields`
- credentials: `access`, `kubeconfig`, `credentials`, `execplugin`, `secrets`, `pem`, `tls`, `files`
- requests: `transport`, `tunnel`, `pipes`, `failures`, `client`, `patches`, `codec`, `retries`,
  `ratelimit`, `discovery`, `fencing`, `requestcounts`, `reviews`
- caches: `watch`, `informer`, `ownwrites`
- control: `workqueue`, `controller`, `outcomes`, `election`, `leaserules`, `leaselock`
- programs: `service`, `components`, `lifespans`, `interrupts`, `server`, `addresses`, `health`,
  `goflags`, `zapflags`
- accounts of what happens: `logs`, `redaction`, `metrics`, `tracing`, `events`, `correlator`
"""

__all__: list[str] = []
