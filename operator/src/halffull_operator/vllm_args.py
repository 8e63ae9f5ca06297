"""The engine's command line: what the operator writes, and which flags of a person's it refuses. Pure."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

_NOT_IN_A_POD: Final = "an engine is one pod; write engine.parallelism.data, or replicas"
_PLAIN: Final = "gateway and probes speak plain HTTP to engines; for clients write gateway.managed.tls"

OWNED: Final = {
    "model": "write model.uri",
    "revision": "write model.uri: hf://org/name@revision",
    "served-model-name": "write model.servedNames",
    "download-dir": "write model.cache",
    "hf-token": "write model.credentialsSecret, a Secret with the key HF_TOKEN",
    "api-key": "it would be readable in the pod; write engine.env with VLLM_API_KEY from a secretKeyRef",
    "host": "the operator sets it",
    "port": "the operator sets it",
    "uds": "the operator sets host and port",
    "grpc": "the gateway speaks HTTP to engines",
    "headless": _NOT_IN_A_POD,
    "config": "write its flags into engine.args",
    "tensor-parallel-size": "write engine.parallelism.tensor",
    "pipeline-parallel-size": "write engine.parallelism.pipeline",
    "data-parallel-size": "write engine.parallelism.data",
    "data-parallel-size-local": _NOT_IN_A_POD,
    "data-parallel-rank": _NOT_IN_A_POD,
    "data-parallel-start-rank": _NOT_IN_A_POD,
    "data-parallel-address": _NOT_IN_A_POD,
    "data-parallel-rpc-port": _NOT_IN_A_POD,
    "data-parallel-backend": _NOT_IN_A_POD,
    "data-parallel-hybrid-lb": _NOT_IN_A_POD,
    "data-parallel-external-lb": _NOT_IN_A_POD,
    "data-parallel-multi-port-external-lb": _NOT_IN_A_POD,
    "data-parallel-supervisor-port": _NOT_IN_A_POD,
    "prefill-context-parallel-size": "it multiplies the GPUs of a pod; write engine.parallelism",
    "nnodes": _NOT_IN_A_POD,
    "node-rank": _NOT_IN_A_POD,
    "master-addr": _NOT_IN_A_POD,
    "master-port": _NOT_IN_A_POD,
    "max-model-len": "write engine.maxModelLen",
    "shutdown-timeout": "write engine.drainTimeout",
    "ssl-keyfile": _PLAIN,
    "ssl-certfile": _PLAIN,
    "ssl-ca-certs": _PLAIN,
    "ssl-cert-reqs": _PLAIN,
    "enable-ssl-refresh": _PLAIN,
    "ssl-ciphers": _PLAIN,
    "disable-log-stats": "the picker and Prometheus need vLLM's metrics",
}
"""Flags that belong to the operator → what to write instead."""
OWNED_BY_PLUGIN: Final = {
    "scheduler-cls": "write scheduler.policy (Stock leaves the flag to you)",
    "additional-config": "write scheduler (policy Stock leaves the flag to you)",
}
_SHORT: Final = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "dpn": "data-parallel-rank",
    "dpr": "data-parallel-start-rank",
    "dpl": "data-parallel-size-local",
    "dpa": "data-parallel-address",
    "dpp": "data-parallel-rpc-port",
    "dpb": "data-parallel-backend",
    "dph": "data-parallel-hybrid-lb",
    "dpe": "data-parallel-external-lb",
    "dpm": "data-parallel-multi-port-external-lb",
    "pcp": "prefill-context-parallel-size",
    "n": "nnodes",
    "r": "node-rank",
}
OWNED_ENV: Final = {
    "HF_HOME": "write model.cache: the operator puts it on the claim",
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "it must stay above Envoy's idle timeout; the operator sets it",
    "VLLM_PORT": "the operator sets the port",
}
_OWNED_ENV_BY_PLUGIN: Final = {"VLLM_PLUGINS": "it would leave Halffull's plugin out"}
_FLAG: Final = re.compile(r"--?([A-Za-z][^=.]*)")


def flag_of(argument: str) -> str | None:
    """The flag that vLLM's parser sees in one item, `max-model-len`; None for a value.

    It takes `_` for `-`, a value after `=`, and JSON keys after a dot (`--additional-config.larry.alpha`).
    """
    match = _FLAG.match(argument)
    return match[1].replace("_", "-") if match else None


def refused_args(args: Iterable[str], *, stock: bool) -> Iterator[tuple[int, str]]:
    """Items that name a flag of the operator's, abbreviated or not (argparse takes any unique beginning)."""
    owned = OWNED if stock else OWNED | OWNED_BY_PLUGIN
    for index, argument in enumerate(args):
        flag = flag_of(argument)
        if flag is None:
            continue
        known = flag.removeprefix("no-")
        short = not argument.startswith("--")
        names = [_SHORT[name] for name in _SHORT if name.startswith(flag)] if short else _meant(known, owned)
        for name in names[:1]:
            yield index, f"--{name} belongs to the operator: {owned[name]}"


def _meant(flag: str, owned: dict[str, str]) -> list[str]:
    if flag in owned:
        return [flag]
    return [name for name in owned if name.startswith(flag)]


def refused_env(names: Iterable[str], *, stock: bool = False) -> Iterator[tuple[int, str]]:
    """Variables that belong to the operator."""
    owned = OWNED_ENV if stock else OWNED_ENV | _OWNED_ENV_BY_PLUGIN
    for index, name in enumerate(names):
        if name in owned:
            yield index, f"{name} belongs to the operator: {owned[name]}"


def value_of(args: Iterable[str], flag: str) -> str | None:
    """The value given to a flag, the last one as argparse takes it; "" for a switch."""
    items = list(args)
    found = None
    for index, argument in enumerate(items):
        if flag_of(argument) == flag:
            _, equals, value = argument.partition("=")
            following = items[index + 1] if index + 1 < len(items) else "-"
            found = value if equals else "" if following.startswith("-") else following
    return found


def asynchronous(args: Iterable[str], *, cpu: bool, pipeline: int) -> bool:
    """Whether vLLM schedules asynchronously, which decides about the plugin's class.

    Its CPU platform never does, and with pipeline parallelism it depends on the release: there we say no.
    """
    items = list(args)
    wanted = value_of(items, "async-scheduling") is not None
    refused = value_of(items, "no-async-scheduling") is not None
    return not cpu and not refused and (wanted or pipeline == 1)
