"""Pods as a busy cluster has them: about 9 KB of JSON, over a third of it managedFields."""

from __future__ import annotations

import hashlib

from kubeocean.runtime.objects import Json, encode

__all__ = ["event", "pod"]

_CONDITIONS = (
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
)


def pod(number: int, version: int) -> Json:
    """Return the pod of that number; all differ in names, images, addresses and times."""
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    app, name = f"app-{number % 97}", f"app-{number % 97}-{digest[:10]}-{digest[10:15]}"
    stamp = f"2026-11-15T{number % 24:02}:{number % 60:02}:{version % 60:02}Z"
    containers = [_container(f"c{n}", digest, n) for n in range(2)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": f"team-{number % 31}",
            "uid": f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-8{digest[17:20]}-{digest[20:32]}",
            "resourceVersion": str(version),
            "generation": 1,
            "creationTimestamp": stamp,
            "generateName": f"{app}-{digest[:10]}-",
            "labels": {"app": app, "pod-template-hash": digest[:10], "team": f"t{number % 31}"},
            "annotations": {"checksum/config": digest, "prometheus.io/scrape": "true"},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": f"{app}-{digest[:10]}",
                    "uid": f"{digest[32:40]}-0000-4000-8000-{digest[40:52]}",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": _managed_fields(stamp),
        },
        "spec": {
            "containers": containers,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": app,
            "nodeName": f"node-{number % 500}",
            "securityContext": {"runAsNonRoot": True, "fsGroup": 2000},
            "schedulerName": "default-scheduler",
            "tolerations": [
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
                for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
            ],
            "priority": 0,
            "enableServiceLinks": True,
            "volumes": [
                {"name": "config", "configMap": {"name": f"{app}-config", "defaultMode": 420}},
                {
                    "name": "token",
                    "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]},
                },
            ],
        },
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": type_, "status": "True", "lastTransitionTime": stamp}
                for type_ in _CONDITIONS
            ],
            "hostIP": f"10.0.{number % 250}.{number % 240}",
            "podIP": f"10.{number % 250}.{number // 250 % 250}.{number % 240}",
            "podIPs": [{"ip": f"10.{number % 250}.{number // 250 % 250}.{number % 240}"}],
            "startTime": stamp,
            "qosClass": "Burstable",
            "containerStatuses": [
                {
                    "name": container["name"],
                    "ready": True,
                    "restartCount": number % 3,
                    "image": container["image"],
                    "imageID": f"registry.example/{app}@sha256:{digest}",
                    "containerID": f"containerd://{digest}",
                    "started": True,
                    "state": {"running": {"startedAt": stamp}},
                }
                for container in containers
            ],
        },
    }


def event(type_: str, number: int, version: int) -> bytes:
    """Return a watch event as a line."""
    return encode({"type": type_, "object": pod(number, version)}) + b"\n"


def _container(name: str, digest: str, n: int) -> Json:
    return {
        "name": name,
        "image": f"registry.example/team/{name}:{digest[:12]}",
        "command": ["/bin/server", f"--listen=:{8080 + n}", "--config=/etc/app/config.yaml"],
        "ports": [{"name": "http", "containerPort": 8080 + n, "protocol": "TCP"}],
        "env": [{"name": f"SETTING_{i}", "value": digest[i : i + 24]} for i in range(12)],
        "resources": {
            "requests": {"cpu": "100m", "memory": "128Mi"},
            "limits": {"cpu": "1", "memory": "512Mi"},
        },
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/app", "readOnly": True},
            {"name": "token", "mountPath": "/var/run/secrets", "readOnly": True},
        ],
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 10},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 5},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }


def _managed_fields(stamp: str) -> list[Json]:
    env = {f'k:{{"name":"SETTING_{i}"}}': {".": {}, "f:name": {}, "f:value": {}} for i in range(12)}
    containers = {
        f'k:{{"name":"c{n}"}}': {
            ".": {},
            "f:command": {},
            "f:env": {".": {}, **env},
            "f:image": {},
            "f:imagePullPolicy": {},
            "f:livenessProbe": {".": {}, "f:httpGet": {".": {}, "f:path": {}, "f:port": {}}},
            "f:readinessProbe": {".": {}, "f:httpGet": {".": {}, "f:path": {}, "f:port": {}}},
            "f:resources": {".": {}, "f:limits": {".": {}, "f:cpu": {}, "f:memory": {}}},
            "f:volumeMounts": {".": {}, 'k:{"mountPath":"/etc/app"}': {".": {}, "f:name": {}}},
        }
        for n in range(2)
    }
    status = {
        f'k:{{"type":"{type_}"}}': {".": {}, "f:lastTransitionTime": {}, "f:status": {}}
        for type_ in _CONDITIONS
    }
    return [
        {
            "manager": "kube-controller-manager",
            "operation": "Update",
            "apiVersion": "v1",
            "time": stamp,
            "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:metadata": {"f:labels": {".": {}, "f:app": {}, "f:pod-template-hash": {}}},
                "f:spec": {"f:containers": containers, "f:dnsPolicy": {}, "f:restartPolicy": {}},
            },
        },
        {
            "manager": "kubelet",
            "operation": "Update",
            "apiVersion": "v1",
            "time": stamp,
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:status": {"f:conditions": status, "f:podIP": {}, "f:startTime": {}}},
            "subresource": "status",
        },
    ]
