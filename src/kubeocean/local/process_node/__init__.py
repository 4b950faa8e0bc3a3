"""A node of a local cluster that runs Kubeocean's own pods as processes of this machine."""

__all__: list[str] = []
