"""LLMServings whose values the API server stores in other words, completes, or leaves out: all must be at rest."""

from typing import Any, Final

_ADDRESS: Final = {"name": "HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}
_LIMIT: Final = {"name": "CORES", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": 1}}}


def _hatch(spec: dict[str, Any], **engine: Any) -> dict[str, Any]:
    return {"engine": {"podTemplate": {"spec": {"containers": [{"name": "engine", **engine}], **spec}}}}


SPELLINGS: Final[dict[str, dict[str, Any]]] = {
    "quantities": {
        "engine": {
            "shmSize": "2048Mi",
            "resources": {
                "requests": {"cpu": "1000m", "memory": "2048Mi", "ephemeral-storage": "1.5Gi"},
                "limits": {"cpu": 2, "memory": "2097152Ki", "ephemeral-storage": "2000000k"},
            },
        }
    },
    "fractions": {"engine": {"resources": {"requests": {"cpu": "0.10", "memory": "0.5Gi"}, "limits": {"cpu": "1.0"}}}},
    "claim": {"model": {"cache": {"size": "1024Mi"}}},
    "empty": {
        "engine": {
            "args": [],
            "env": [{"name": "A", "value": ""}, {"name": "B"}],
            "nodeSelector": {},
            "tolerations": [{"operator": "Exists", "key": "", "effect": "NoSchedule"}][:0],
            "imagePullSecrets": [],
            "podTemplate": {},
        },
        "gateway": {"managed": {"service": {"annotations": {"example.test/a": ""}}, "podTemplate": {"spec": {}}}},
        "networkPolicy": {"enabled": True, "allowFrom": []},
        "monitoring": {"podMonitor": {"enabled": True, "labels": {"empty": ""}}},
    },
    "nulls": {
        "engine": {
            "podTemplate": {
                "metadata": {"labels": None, "annotations": None},
                "spec": {
                    "affinity": None,
                    "priorityClassName": None,
                    "securityContext": {"runAsUser": None},
                    "containers": [
                        {"name": "engine", "livenessProbe": None, "securityContext": {"capabilities": None}},
                        {"name": "side", "image": "side:1", "resources": None, "env": None, "command": None},
                    ],
                },
            }
        },
        "gateway": {"managed": {"podTemplate": {"spec": {"affinity": None, "topologySpreadConstraints": None}}}},
    },
    "affinity": _hatch(
        {
            "affinity": {},
            "dnsConfig": {},
            "securityContext": {},
            "hostAliases": [],
            "nodeName": "",
            "hostNetwork": False,
        }
    ),
    "duplicates": {
        "profile": "h100",
        "engine": {
            "env": [{"name": "HF_HUB_OFFLINE", "value": "0"}, {"name": "HOME", "value": "/cache/home"}],
            "imagePullSecrets": [{"name": "pull"}, {"name": "other"}],
            "tolerations": [{"key": "a"}, {"key": "a"}],
            "gpuResource": "none",
            "podTemplate": {
                "spec": {
                    "containers": [
                        {
                            "name": "side",
                            "image": "side:1",
                            "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}],
                            "ports": [{"containerPort": 53}, {"containerPort": 53, "protocol": "UDP"}],
                        }
                    ]
                }
            },
        },
    },
    "references": _hatch({}, env=[_ADDRESS, _LIMIT]) | {"replicas": 0},
    "volumes": _hatch(
        {
            "volumes": [
                {"name": "config", "configMap": {"name": "a", "items": [{"key": "a", "path": "a"}], "optional": True}},
                {"name": "secret", "secret": {"secretName": "a", "optional": True, "defaultMode": 0o400}},
                {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
                {"name": "down", "downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                {"name": "ram", "emptyDir": {"medium": "", "sizeLimit": "1024Mi"}},
                {"name": "host", "hostPath": {"path": "/data"}},
                {
                    "name": "scratch",
                    "ephemeral": {
                        "volumeClaimTemplate": {
                            "spec": {
                                "accessModes": ["ReadWriteOnce"],
                                "resources": {"requests": {"storage": "1024Mi"}},
                            }
                        }
                    },
                },
            ]
        },
        volumeMounts=[
            {"name": "config", "mountPath": "/config"},
            {"name": "ram", "mountPath": "/ram", "readOnly": False},
        ],
    )
    | {"replicas": 0},
    "probes": _hatch({}, startupProbe={"httpGet": {"scheme": "", "port": 8000}, "initialDelaySeconds": 0}, tty=False),
    "peers": {
        "networkPolicy": {
            "enabled": True,
            "allowFrom": [
                {"podSelector": {}},
                {"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}},
                {"ipBlock": {"cidr": "10.1.2.3/8"}},
                {"ipBlock": {"cidr": "FD00::/8"}},
            ],
        }
    },
    "route": {
        "gateway": {
            "route": {
                "parentRefs": [{"name": "a", "group": "", "kind": "Service"}, {"name": "b", "namespace": "c"}],
                "pathPrefix": "/",
            }
        }
    },
    "balanced": {"gateway": {"managed": {"service": {"type": "LoadBalancer"}}}},
    "placed": {
        "engine": {
            "tolerations": [{"key": "a", "value": ""}, {"operator": "Exists"}, {"key": "b", "operator": "Equal"}],
            "drainTimeout": "0s",
            "startupTimeout": "0h1m",
        }
    },
}

REMEMBERED: Final = frozenset({"probes"})
"""What differs for ever: an empty text that the server fills in. Only its answer to an apply tells so."""
