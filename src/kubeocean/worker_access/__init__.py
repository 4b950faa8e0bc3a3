"""Access to a worker cluster: credentials, their rotation, the cluster's identity, clients."""

__all__: list[str] = []
