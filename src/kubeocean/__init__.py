"""Kubeocean lends the idle capacity of many Kubernetes clusters to one."""

__version__ = "0.1.0"
