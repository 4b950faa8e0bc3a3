"""The kubelet's face of virtual nodes: logs, exec and metrics, for those who may."""
