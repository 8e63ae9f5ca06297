"""Small manifests with every kind of list and map that matters, and what a real API server (1.34) fills in."""

import copy
from typing import Any

OWNER = {
    "apiVersion": "serving.halffull.dev/v1alpha1",
    "kind": "LLMServing",
    "name": "llama",
    "uid": "cr-1",
    "controller": True,
    "blockOwnerDeletion": True,
}


def statefulset() -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": "llama-engine",
            "namespace": "team",
            "labels": {"app": "llama"},
            "annotations": {"serving.halffull.dev/engine-inputs": "in-1", "serving.halffull.dev/template-hash": "t-1"},
            "ownerReferences": [OWNER],
        },
        "spec": {
            "replicas": 2,
            "serviceName": "llama-engine",
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": "llama"}},
            "template": {
                "metadata": {"labels": {"app": "llama"}},
                "spec": {
                    "enableServiceLinks": False,
                    "nodeSelector": {"gpu": "h100"},
                    "initContainers": [{"name": "first", "image": "a:1"}, {"name": "second", "image": "b:1"}],
                    "containers": [
                        {
                            "name": "vllm",
                            "image": "vllm:1",
                            "args": ["serve", "m", "--max-num-seqs", "64"],
                            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)"}],
                            "ports": [{"name": "http", "containerPort": 8000}, {"name": "load", "containerPort": 9400}],
                            "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "2048Mi", "cpu": 0.5}},
                            "volumeMounts": [{"name": "shm", "mountPath": "/a"}, {"name": "tmp", "mountPath": "/b"}],
                        }
                    ],
                    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                    "volumes": [
                        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1024Mi"}},
                        {"name": "tmp", "emptyDir": {}},
                    ],
                },
            },
            "volumeClaimTemplates": [
                {
                    "metadata": {"name": "cache"},
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "100Gi"}}},
                }
            ],
        },
    }


def defaulted_statefulset(live: dict[str, Any]) -> dict[str, Any]:
    """The same as the API server sends it back."""
    live = copy.deepcopy(live)
    spec = live["spec"]
    spec |= {
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
        "revisionHistoryLimit": 10,
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
    }
    spec["template"]["metadata"]["creationTimestamp"] = None
    pod = spec["template"]["spec"]
    pod |= {
        "dnsPolicy": "ClusterFirst",
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {},
    }
    for container in (*pod["containers"], *pod["initContainers"]):
        container |= {"imagePullPolicy": "IfNotPresent", "terminationMessagePath": "/dev/termination-log"}
        container.setdefault("resources", {})
    for container in pod["containers"]:
        for port in container["ports"]:
            port["protocol"] = "TCP"
        container["resources"] = {
            "limits": {"nvidia.com/gpu": "1", "memory": "2Gi", "cpu": "500m"},
            "requests": {"nvidia.com/gpu": "1", "memory": "2Gi", "cpu": "500m"},
        }
    for volume in pod["volumes"]:
        if volume["name"] == "shm":
            volume["emptyDir"]["sizeLimit"] = "1Gi"
    for claim in spec["volumeClaimTemplates"]:
        claim |= {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "status": {"phase": "Pending"}}
        claim["metadata"]["creationTimestamp"] = None
        claim["spec"]["volumeMode"] = "Filesystem"
    live["status"] = {"replicas": 2, "observedGeneration": 1}
    return live


def service() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "llama-gateway", "namespace": "team", "ownerReferences": [OWNER]},
        "spec": {
            "selector": {"app": "llama"},
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
            "type": "ClusterIP",
        },
    }


def route() -> dict[str, Any]:
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "llama-route", "namespace": "team", "ownerReferences": [OWNER]},
        "spec": {
            "parentRefs": [{"name": "gw"}],
            "hostnames": ["a.example"],
            "rules": [{"backendRefs": [{"name": "llama", "port": 80}]}],
        },
    }


def defaulted_route(live: dict[str, Any]) -> dict[str, Any]:
    live = copy.deepcopy(live)
    live["spec"]["parentRefs"][0] |= {"group": "gateway.networking.k8s.io", "kind": "Gateway"}
    live["spec"]["rules"][0]["backendRefs"][0] |= {"group": "", "kind": "Service", "weight": 1}
    live["spec"]["rules"][0]["matches"] = [{"path": {"type": "PathPrefix", "value": "/"}}]
    return live
