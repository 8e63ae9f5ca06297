"""What must be refused, by the API server and by `parse` alike: one case for each rule, in the words of the message.

`BY_BOTH` holds for the CRD's schema and for `parse`; `BY_PARSE` is too dear for CEL: it shows in a condition.
"""

from typing import Any

Case = tuple[dict[str, Any], str, str]
"""(what the spec says, the field that is named, a part of the message)"""

_ROUTE = {"parentRefs": [{"name": "gw"}]}
_PEERS = "networkPolicy"

BY_BOTH: dict[str, Case] = {
    "uri": ({"model": {"uri": "llama"}}, "spec.model.uri", "write hf://org/name"),
    "uri-scheme": ({"model": {"uri": "gs://bucket/x"}}, "spec.model.uri", "write hf://org/name"),
    "uri-up": ({"model": {"uri": "pvc://claim/a/b..c"}}, "spec.model.uri", "write hf://org/name"),
    "uri-newline": ({"model": {"uri": "hf://a/b\n"}}, "spec.model.uri", "write hf://org/name"),
    "cache-size": ({"model": {"uri": "hf://a/b", "cache": {"size": "big"}}}, "spec.model.cache.size", "such as 200Gi"),
    "cache-zero": ({"model": {"uri": "hf://a/b", "cache": {"size": "0"}}}, "spec.model.cache.size", "such as 200Gi"),
    "served-name": ({"model": {"uri": "hf://a/b", "servedNames": ["-x"]}}, "spec.model.servedNames[0]", "a model name"),
    "profile": ({"profile": "H100"}, "spec.profile", "a name of a-z"),
    "gpus": (
        {"engine": {"parallelism": {"tensor": 8, "pipeline": 8, "data": 2}}},
        "spec.engine.parallelism",
        "GPUs of one pod, at most 64",
    ),
    "gpu-resource": ({"engine": {"gpuResource": "gpu"}}, "spec.engine.gpuResource", "such as nvidia.com/gpu, or none"),
    "image": ({"engine": {"image": "vllm latest"}}, "spec.engine.image", "an image such as"),
    "shm": ({"engine": {"shmSize": "-1Gi"}}, "spec.engine.shmSize", "a size such as"),
    "drain": ({"engine": {"drainTimeout": "25h"}}, "spec.engine.drainTimeout", "from 0s to 24h"),
    "drain-unit": ({"engine": {"drainTimeout": "10"}}, "spec.engine.drainTimeout", "from 0s to 24h"),
    "startup": ({"engine": {"startupTimeout": "5s"}}, "spec.engine.startupTimeout", "from 1m to 24h"),
    "deadline": ({"rollout": {"progressDeadline": ""}}, "spec.rollout.progressDeadline", "from 1m to 24h"),
    "env-name": ({"engine": {"env": [{"name": "1A"}]}}, "spec.engine.env[0].name", "a variable's name"),
    "env-both": (
        {"engine": {"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}},
        "spec.engine.env[0]",
        "write value or valueFrom, not both",
    ),
    "env-source": (
        {"engine": {"env": [{"name": "A", "valueFrom": {}}]}},
        "spec.engine.env[0].valueFrom",
        "exactly one of secretKeyRef",
    ),
    "env-key": (
        {"engine": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "a b"}}}]}},
        "spec.engine.env[0].valueFrom.secretKeyRef.key",
        "a key of letters",
    ),
    "toleration-equal": ({"engine": {"tolerations": [{"value": "x"}]}}, "spec.engine.tolerations[0]", "needs a key"),
    "toleration-key": (
        {"engine": {"tolerations": [{"key": "a b"}]}},
        "spec.engine.tolerations[0].key",
        "a key such as",
    ),
    "toleration-seconds": (
        {"engine": {"tolerations": [{"key": "a", "tolerationSeconds": 1}]}},
        "spec.engine.tolerations[0]",
        "needs effect: NoExecute",
    ),
    "node-selector": ({"engine": {"nodeSelector": {"a": "b c"}}}, "spec.engine.nodeSelector.a", "a label's value"),
    "runtime-class": (
        {"engine": {"runtimeClassName": "Nvidia"}},
        "spec.engine.runtimeClassName",
        "a Kubernetes object",
    ),
    "larry": ({"scheduler": {"policy": "FCFS", "larry": {}}}, "spec.scheduler", "belongs to policy LARRY"),
    "fail-close": (
        {"routing": {"policy": "Random", "failureMode": "FailClose"}},
        "spec",
        "no meaning under LeastRequest, RoundRobin and Random",
    ),
    "fail-close-none": (
        {"routing": {"failureMode": "FailClose"}, "gateway": {"mode": "None"}},
        "spec",
        "no meaning with gateway.mode None",
    ),
    "managed": ({"gateway": {"mode": "InferencePool", "managed": {}}}, "spec.gateway", "write mode: Managed"),
    "route-none": ({"gateway": {"mode": "None", "route": _ROUTE}}, "spec.gateway", "needs a gateway to route to"),
    "path": ({"gateway": {"managed": {"paths": ["v1"]}}}, "spec.gateway.managed.paths[0]", "a path such as"),
    "route-prefix": (
        {"gateway": {"route": {**_ROUTE, "pathPrefix": "/a/"}}},
        "spec.gateway.route.pathPrefix",
        "without / at the end",
    ),
    "route-host": (
        {"gateway": {"route": {**_ROUTE, "hostnames": ["https://x"]}}},
        "spec.gateway.route.hostnames[0]",
        "a host name",
    ),
    "parent-group": (
        {"gateway": {"route": {"parentRefs": [{"name": "gw", "group": "A/B"}]}}},
        "spec.gateway.route.parentRefs[0].group",
        "an API group",
    ),
    "parent-kind": (
        {"gateway": {"route": {"parentRefs": [{"name": "gw", "kind": "a b"}]}}},
        "spec.gateway.route.parentRefs[0].kind",
        "a kind such as",
    ),
    "peer": ({_PEERS: {"allowFrom": [{}]}}, "spec.networkPolicy.allowFrom[0]", "write ipBlock, or podSelector"),
    "peer-cidr": (
        {_PEERS: {"allowFrom": [{"ipBlock": {"cidr": "home"}}]}},
        "spec.networkPolicy.allowFrom[0].ipBlock.cidr",
        "a range such as",
    ),
    "peer-values": (
        {_PEERS: {"allowFrom": [{"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}]}},
        "spec.networkPolicy.allowFrom[0].podSelector.matchExpressions[0]",
        "In and NotIn need values",
    ),
}

BY_PARSE: dict[str, Case] = {
    "arg": ({"engine": {"args": ["--seed=1", "--host=::"]}}, "spec.engine.args[1]", "--host belongs to the operator"),
    "env": ({"engine": {"env": [{"name": "HF_HOME", "value": "/"}]}}, "spec.engine.env[0].name", "write model.cache"),
    "label-key": ({"engine": {"nodeSelector": {"a b": "c"}}}, "spec.engine.nodeSelector.a b", "a key such as"),
    "cidr-range": (
        {_PEERS: {"allowFrom": [{"ipBlock": {"cidr": "10.0.0.0/99"}}]}},
        "spec.networkPolicy.allowFrom[0].ipBlock.cidr",
        "a range such as",
    ),
    "template": (
        {"engine": {"podTemplate": {"spec": {"restartPolicy": "Never"}}}},
        "spec.engine.podTemplate.spec.restartPolicy",
        "pods are always restarted",
    ),
    "gateway-template": (
        {"gateway": {"managed": {"podTemplate": {"spec": {"containers": {}}}}}},
        "spec.gateway.managed.podTemplate.spec.containers",
        "write a list",
    ),
}
