"""The kubelet API of virtual nodes: logs, exec, attach, port-forward and metrics."""
