"""Real nodes of local clusters: a kubelet and containerd in separate Linux namespaces."""

__all__: list[str] = []
