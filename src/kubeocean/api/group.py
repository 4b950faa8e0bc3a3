"""API group, labels, annotations, taints, finalizers and object names of Kubeocean.

Users select by these strings, and earlier implementations wrote them; they are defined in no other
module, and neither are those of Kubernetes that Kubeocean uses. Names with Kubeocean's domain
belong to a `Domain`, so that an installation under another domain runs the same code with another
`Domain`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, overload

from kubeocean.runtime.objects import Key
from kubeocean.runtime.selectors import check_subdomain

__all__ = [
    "ANNOTATIONS_OF_KUBELETS",
    "ANNOTATION_HELM_KEEP",
    "API_VERSION",
    "APP_COMPONENT",
    "APP_INSTANCE",
    "APP_MANAGED_BY",
    "APP_NAME",
    "APP_PART_OF",
    "CATEGORY",
    "COMPONENT_CREDENTIAL",
    "COMPONENT_LOGS_PROXY",
    "COMPONENT_MANAGER",
    "COMPONENT_PROXIER",
    "COMPONENT_SYNCER",
    "COMPONENT_TLS",
    "COMPONENT_WORKER",
    "DEFAULT",
    "DNS_SERVICE",
    "ENV_BINDING_NAME",
    "ENV_HOSTNAME",
    "ENV_POD_IP",
    "ENV_POD_NAME",
    "ENV_POD_NAMESPACE",
    "ENV_PROXIER_NAMESPACE",
    "ENV_PROXIER_TEMPLATES",
    "ENV_SERVICE_HOST",
    "ENV_SERVICE_PORT",
    "ENV_SYNCER_TEMPLATES",
    "EXCLUDED_INSTANCE_TYPES",
    "FLEET_LEFT",
    "FLEET_MEMBER",
    "GROUP",
    "HEALTH_PORT",
    "HOST_PORT_COMMAND",
    "HOST_PORT_CONTAINER",
    "HOST_PORT_IMAGE",
    "HOST_PORT_PRIORITY_CLASS",
    "INSTANCE_TYPE_VNODE",
    "KUBECONFIG_KEY",
    "KUBELET_PORT",
    "LABEL_DASHBOARD",
    "LABEL_EXCLUDE_BALANCERS",
    "LABEL_HOSTNAME",
    "LABEL_INSTANCE_TYPE",
    "LABEL_INSTANCE_TYPE_BETA",
    "LABEL_K8S_APP",
    "LABEL_NODE_TYPE",
    "LABEL_POD_SECURITY",
    "LABEL_SERVICE_NAME",
    "LABEL_SLICE_MANAGED_BY",
    "LABEL_TEMPLATE_HASH",
    "LOG_CONFIG_GROUP",
    "LOG_CONFIG_VERSION",
    "METRICS_PORT",
    "NODE_LEASE_DURATION_S",
    "NODE_LEASE_NAMESPACE",
    "NODE_TYPE_VIRTUAL",
    "PRIORITY_CLASS_VALUE",
    "PROXIER_PORT_FALLBACK",
    "PROXIER_PORT_FIRST",
    "PROXIER_PORT_LAST",
    "PROXIER_TEMPLATES",
    "SERVER_SERVICE",
    "SYNCER_TEMPLATES",
    "SYSTEM_NAMESPACE",
    "TAINT_UNSCHEDULABLE",
    "TAPESTRY",
    "TRUE",
    "VERSION",
    "VNODE_METRICS_PORT",
    "Domain",
]

# Our kinds

GROUP: Final = "cloud.tencent.com"
VERSION: Final = "v1beta1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
CATEGORY: Final = "kubeocean"  # `kubectl get kubeocean`
LOG_CONFIG_GROUP: Final = "cls.cloud.tencent.com"
LOG_CONFIG_VERSION: Final = "v1"
KUBECONFIG_KEY: Final = "kubeconfig"  # key in the Secret that a binding names

TRUE: Final = "true"  # the value of boolean labels, annotations and taints

# Values of the annotation `fleet` of a binding
FLEET_MEMBER: Final = "member"
FLEET_LEFT: Final = "left"  # written when the MemberCluster of the binding was deleted by a user


class _Key:
    """Descriptor that returns a label or annotation key with the Domain's name as its prefix.

    Every reconcile reads several keys, so a key is computed once for each Domain and stored in the
    Domain's `__dict__`, as `functools.cached_property` does.
    """

    def __init__(self, name: str, *, subdomain: str = "") -> None:
        self._name = name
        self._subdomain = subdomain

    def __set_name__(self, owner: type[Domain], attribute: str) -> None:
        self._attribute = attribute

    @overload
    def __get__(self, domain: None, owner: type[Domain]) -> _Key: ...
    @overload
    def __get__(self, domain: Domain, owner: type[Domain]) -> str: ...
    def __get__(self, domain: Domain | None, owner: type[Domain]) -> _Key | str:
        if domain is None:
            return self
        key = f"{self._subdomain}{domain.name}/{self._name}"
        vars(domain)[self._attribute] = key
        return key


class _Object:
    """Descriptor that returns an object's name with the Domain's product name as its prefix."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix

    @overload
    def __get__(self, domain: None, owner: type[Domain]) -> _Object: ...
    @overload
    def __get__(self, domain: Domain, owner: type[Domain]) -> str: ...
    def __get__(self, domain: Domain | None, owner: type[Domain]) -> _Object | str:
        return self if domain is None else f"{domain.product}-{self._suffix}"


@dataclass(frozen=True)  # without slots: keys are stored in its `__dict__`
class Domain:
    """The domain of Kubeocean's labels, annotations, taints, finalizers and object names."""

    name: str = "kubeocean.io"

    def __post_init__(self) -> None:
        check_subdomain(self.name, field="domain")

    @cached_property
    def product(self) -> str:
        """The value of the label `managed_by`, and the prefix of names of Kubeocean's objects."""
        return self.name.partition(".")[0]

    @property
    def sharding(self) -> str:
        """The domain of the labels by which replicas share their work in a ring."""
        return f"sharding.{self.name}"

    # Labels of all objects that Kubeocean creates

    managed_by = _Key("managed-by")  # the product
    cluster_binding = _Key("cluster-binding")  # the name of the ClusterBinding
    physical_cluster_id = _Key("physical-cluster-id")  # the clusterID of the binding

    # New: owner of a physical object, where several computing clusters share a worker cluster
    computing_cluster_id = _Key("computing-cluster-id")
    virtual_uid = _Key("virtual-uid")

    # Labels of virtual nodes and CSINodes; the first two are annotations as well
    physical_node_name = _Key("physical-node-name")
    physical_node_uid = _Key("physical-node-uid")
    physical_node_inner_ip = _Key("physical-node-innerip")
    proxier_port = _Key("proxier_port")

    # Labels of virtual nodes under the names of the design documents, beside those above
    physical_node = _Key("physical-node")
    node_type = _Key("node-type")

    # Label of worker nodes: the policy that lends them
    policy_applied = _Key("policy-applied")

    # Labels of pods
    host_port_pod = _Key("hostport-fake-pod")
    virtual_namespace = _Key("virtual-namespace")  # an annotation of other physical objects
    workload_type = _Key("workload-type")
    workload_name = _Key("workload-name")

    # Labels of Secrets, volumes and LogConfigs
    service_account_token = _Key("service-account-token")
    used_by_pv = _Key("used-by-pv")
    virtual_log_config = _Key("virtual-logconfig")

    # Labels of certificate signing requests; the second one of virtual nodes as well
    component = _Key("component")
    cluster_id = _Key("cluster-id")
    node_name = _Key("node-name")

    # Annotations of virtual nodes and CSINodes
    last_sync_time = _Key("last-sync-time")
    policies_applied = _Key("policies-applied")
    policy_details = _Key("policy-details")
    resource_policy = _Key("resource-policy")  # all policies that select the node
    expected_metadata = _Key("expected-metadata")
    expected_spec = _Key("expected-spec")  # new, of physical pods
    prometheus_url = _Key("prometheus-url")
    deletion_taint_time = _Key("deletion-taint-time")
    last_eviction_time = _Key("last-eviction-time")  # new: from which the cool-down counts
    cordoned = _Key("cordoned")  # new: a reclaim, and no user, made the node unschedulable
    physical_csinode_uid = _Key("physical-csinode-uid")
    physical_cluster_name = _Key("physical-cluster-name")

    # Annotations that connect virtual and physical pods
    virtual_pod_namespace = _Key("virtual-pod-namespace")
    virtual_pod_name = _Key("virtual-pod-name")
    virtual_pod_uid = _Key("virtual-pod-uid")
    virtual_node_name = _Key("virtual-node-name")
    physical_pod_namespace = _Key("physical-pod-namespace")
    physical_pod_name = _Key("physical-pod-name")
    physical_pod_uid = _Key("physical-pod-uid")
    running_daemonset = _Key("running-daemonset")
    sync_back = _Key("sync-back")  # of a ConfigMap or Secret: changes of its copies are copied back
    synced_hash = _Key("synced-hash")  # of a copy: hash of the last content that both had

    # Annotations that connect other virtual and physical objects
    physical_name = _Key("physical-name")
    physical_namespace = _Key("physical-namespace")
    virtual_name = _Key("virtual-name")
    service_account = _Key("service-account")

    # New: when a token expires, and when it is renewed
    token_expires = _Key("token-expires")
    token_due = _Key("token-due")
    # New, a label of TokenRequests: a syncer requests a token for a pod of a virtual node
    token_request = _Key("token-request")

    # New, of a kubeconfig's Secret and of a binding: the identity of the worker cluster
    worker_cluster_id = _Key("worker-cluster-id")

    # New, on the system namespace: `kubeocean up` created it in a local cluster
    local_ocean = _Key("local-ocean")

    # Annotations of the proxier's certificate, and of the binding about it
    certificate_renewed = _Key("certificate-renewed")
    renewal_reason = _Key("renewal-reason")
    logs_proxy_enabled = _Key("logs-proxy-enabled")
    logs_proxy_secret_name = _Key("logs-proxy-secret-name")
    logs_proxy_secret_namespace = _Key("logs-proxy-secret-namespace")

    # New, an annotation of a binding that is being deleted: delete without waiting any more
    force_deletion = _Key("force-deletion")

    # New: on objects that a manager rolls out, a digest of the rendered templates
    rollout_digest = _Key("rollout-digest")

    # New, on such objects in a management cluster, where the binding cannot own them: its name and
    # UID
    rolled_out_for = _Key("rolled-out-for")

    # New, on the system namespace: the cluster in which Kubeocean's programs run, if another
    management_cluster_id = _Key("management-cluster-id")

    # New, of a binding: how much its syncer and its proxier log
    log_level = _Key("log-level")

    # New, of a binding: whether its worker is a member of the fleet, the time between its
    # heartbeats, and the user name that its syncer has in the computing cluster
    fleet = _Key("fleet")
    fleet_heartbeat = _Key("fleet-heartbeat-seconds")
    fleet_identity = _Key("fleet-identity")

    # New, on virtual nodes that are being drained: the actor that cordoned them
    drained = _Key("drained")

    # Taints of virtual nodes
    taint_vnode = _Key("vnode")
    taint_physical_unschedulable = _Key("physical-node-unschedulable")
    taint_out_of_time_windows = _Key("out-of-time-windows")
    taint_vnode_deleting = _Key("vnode-deleting")

    # Finalizers; the last two were never set by a release, and are removed where they are found
    finalizer_manager = _Key("clusterbinding-manager")
    finalizer_syncer = _Key("clusterbinding-syncer")
    finalizer_vnode = _Key("vnode")
    finalizer_policy = _Key("finalizer", subdomain="policy.")
    finalizer_virtual_pod = _Key("virtual-pod")
    finalizer_synced_resource = _Key("synced-resource")

    # Objects
    manager = _Object("manager")
    syncer = _Object("syncer")
    proxier = _Object("proxier")
    metrics = _Object("metrics")  # new: the account that scrapes kubelets
    egress_policy = _Object("syncer-egress")  # new: the NetworkPolicy of pods in a worker
    system_namespace = _Object("system")
    host_port_namespace = _Object("fake")
    worker_namespace = _Object("worker")
    priority_class = _Object("default")

    def synced_by(self, cluster_id: str) -> str:
        """Return the label key of a virtual object that is copied into the worker `cluster_id`."""
        return f"{self.name}/synced-by-{cluster_id}"

    def deleting(self, cluster_id: str) -> str:
        """Return the annotation key of a virtual object whose copy in a worker is to be deleted."""
        return f"{self.name}/deleting-{cluster_id}"

    def phase_in(self, cluster_id: str) -> str:
        """Return the annotation key for the phase of a volume's or claim's copy in a worker."""
        return f"{self.name}/phase-{cluster_id}"

    def finalizer_for(self, cluster_id: str) -> str:
        """Return the finalizer of a virtual object that has a copy in the worker `cluster_id`."""
        return f"{self.name}/finalizer-{cluster_id}"

    def owns(self, key: str) -> bool:
        """Whether the key of a label, annotation, taint or finalizer belongs to this domain."""
        prefix = key.partition("/")[0]
        return prefix == self.name or prefix.endswith(f".{self.name}")

    @cached_property
    def system_namespaces(self) -> frozenset[str]:
        """Namespaces whose pods stay in the computing cluster and whose objects are not copied."""
        kubernetes = {SYSTEM_NAMESPACE, "kube-public", NODE_LEASE_NAMESPACE}
        return frozenset(kubernetes | {self.system_namespace, self.host_port_namespace})


DEFAULT: Final = Domain()
TAPESTRY: Final = Domain("tapestry.io")  # the earlier name of the project

# Labels and taints of Kubernetes, and their values on virtual nodes

LABEL_HOSTNAME: Final = "kubernetes.io/hostname"
LABEL_INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
LABEL_INSTANCE_TYPE_BETA: Final = "beta.kubernetes.io/instance-type"
LABEL_NODE_TYPE: Final = "type"
LABEL_EXCLUDE_BALANCERS: Final = "node.kubernetes.io/exclude-from-external-load-balancers"
LABEL_K8S_APP: Final = "k8s-app"
LABEL_SERVICE_NAME: Final = "kubernetes.io/service-name"  # of EndpointSlices
LABEL_SLICE_MANAGED_BY: Final = "endpointslice.kubernetes.io/managed-by"
LABEL_POD_SECURITY: Final = "pod-security.kubernetes.io/enforce"  # of namespaces
LABEL_TEMPLATE_HASH: Final = "pod-template-hash"  # of pods of a Deployment, and of their ReplicaSet
ANNOTATION_HELM_KEEP: Final = "helm.sh/resource-policy"  # `keep`: not uninstalled with a release
ANNOTATIONS_OF_KUBELETS: Final = "kubernetes.io/config."  # prefix; of static pods
LABEL_DASHBOARD: Final = "grafana_dashboard"  # of ConfigMaps that a Grafana collects
TAINT_UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
NODE_TYPE_VIRTUAL: Final = "virtual-kubelet"
INSTANCE_TYPE_VNODE: Final = "vnode"
EXCLUDED_INSTANCE_TYPES: Final = frozenset({"external", INSTANCE_TYPE_VNODE, "eklet"})

APP_NAME: Final = "app.kubernetes.io/name"
APP_INSTANCE: Final = "app.kubernetes.io/instance"
APP_COMPONENT: Final = "app.kubernetes.io/component"
APP_PART_OF: Final = "app.kubernetes.io/part-of"
APP_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
COMPONENT_MANAGER: Final = "manager"
COMPONENT_SYNCER: Final = "syncer"
COMPONENT_PROXIER: Final = "proxier"
COMPONENT_TLS: Final = "tls"
COMPONENT_CREDENTIAL: Final = "credential"  # of the Secret that a token of the worker is bound to
COMPONENT_WORKER: Final = "worker"  # of objects that bindings share in a worker
COMPONENT_LOGS_PROXY: Final = "logs-proxy"  # of certificate signing requests

# Objects of Kubernetes

SERVER_SERVICE: Final = Key("default", "kubernetes-intranet")
DNS_SERVICE: Final = Key("kube-system", "kube-dns-intranet")
SYSTEM_NAMESPACE: Final = "kube-system"  # its UID identifies a cluster
NODE_LEASE_NAMESPACE: Final = "kube-node-lease"
NODE_LEASE_DURATION_S: Final = 40

# Objects that Kubeocean creates

PRIORITY_CLASS_VALUE: Final = -10_000
HOST_PORT_CONTAINER: Final = "fake-container"
HOST_PORT_IMAGE: Final = "busybox:1.28"
HOST_PORT_COMMAND: Final = ("sleep", "100000000")
HOST_PORT_PRIORITY_CLASS: Final = "system-node-critical"

# Ports

METRICS_PORT: Final = 8080
HEALTH_PORT: Final = 8081
KUBELET_PORT: Final = 10250
VNODE_METRICS_PORT: Final = 9006
PROXIER_PORT_FIRST: Final = 15_000
PROXIER_PORT_LAST: Final = 65_535
PROXIER_PORT_FALLBACK: Final = 8080  # where a virtual node has no label that names its port

# Environment

ENV_SYNCER_TEMPLATES: Final = "KUBEOCEAN_SYNCER_TEMPLATE_DIR"
ENV_PROXIER_TEMPLATES: Final = "KUBEOCEAN_PROXIER_TEMPLATE_DIR"
ENV_PROXIER_NAMESPACE: Final = "KUBEOCEAN_PROXIER_NAMESPACE"  # set by the manager in syncers
SYNCER_TEMPLATES: Final = "/etc/kubeocean/syncer-template"
PROXIER_TEMPLATES: Final = "/etc/kubeocean/proxier-template"
ENV_POD_NAME: Final = "POD_NAME"
ENV_POD_NAMESPACE: Final = "POD_NAMESPACE"
ENV_POD_IP: Final = "POD_IP"
ENV_BINDING_NAME: Final = "CLUSTER_BINDING_NAME"
ENV_SERVICE_HOST: Final = "KUBERNETES_SERVICE_HOST"
ENV_SERVICE_PORT: Final = "KUBERNETES_SERVICE_PORT"
ENV_HOSTNAME: Final = "HOSTNAME"
