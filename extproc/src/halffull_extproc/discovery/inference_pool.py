"""Endpoints of an InferencePool (inference.networking.k8s.io/v1): the pods of its selector, on its target ports."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from halffull_extproc.discovery import OnEndpoints, OnTrouble
from halffull_extproc.discovery.families import Found, one_per_pod
from halffull_extproc.discovery.kube import KubeError, Object, Watcher
from halffull_extproc.endpoint import Endpoint, Health


@dataclass(frozen=True, slots=True)
class Target:
    """What an InferencePool selects."""

    selector: str
    """As the API takes it: `app=vllm,tier=gpu`."""
    ports: tuple[int, ...]


def target_of(pool: Object) -> Target:
    """Selector and ports of an InferencePool.

    Raises:
        KubeError: it selects nothing, or everything, or has no port.
    """
    spec = pool.get("spec") or {}
    labels = (spec.get("selector") or {}).get("matchLabels")
    if not isinstance(labels, Mapping) or not labels:
        raise KubeError("spec.selector.matchLabels is empty: it would select every pod")
    numbers = [port.get("number") for port in spec.get("targetPorts") or [] if isinstance(port, Mapping)]
    ports = tuple(number for number in numbers if isinstance(number, int) and 0 < number < 65536)
    if not ports or len(ports) != len(numbers):
        raise KubeError("spec.targetPorts needs a number from 1 to 65535 in each item")
    return Target(selector=",".join(f"{key}={labels[key]}" for key in sorted(labels)), ports=ports)


def endpoints_from_pods(
    pods: Iterable[Object], *, ports: tuple[int, ...], load_port: int, ranks: int
) -> list[Endpoint]:
    """One endpoint for each pod and target port.

    Several target ports are several data-parallel engines in one pod: the load report of the one at place i is at
    load_port + i·ranks. A pod with a deletionTimestamp is DRAINING, one that is not Ready UNHEALTHY, an ended one gone.
    """
    return one_per_pod(_found(pods, ports=ports, load_port=load_port, ranks=ranks))


def _found(pods: Iterable[Object], *, ports: tuple[int, ...], load_port: int, ranks: int) -> Iterator[Found]:
    for pod in pods:
        metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
        if status.get("phase") in ("Succeeded", "Failed"):
            continue
        addresses = [entry.get("ip") for entry in status.get("podIPs") or []] or [status.get("podIP")]
        for ip in filter(None, addresses):
            for index, port in enumerate(ports):
                yield Found(
                    pod=str(metadata.get("uid") or metadata.get("name")),
                    ip=str(ip),
                    port=port,
                    load_port=load_port + index * ranks,
                    health=_health(metadata, status),
                    name=str(metadata.get("name") or ""),
                )


def _health(metadata: Mapping[str, Any], status: Mapping[str, Any]) -> Health:
    if metadata.get("deletionTimestamp"):
        return Health.DRAINING
    ready = any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in status.get("conditions") or []
    )
    return Health.HEALTHY if ready else Health.UNHEALTHY


@dataclass(slots=True, kw_only=True)
class PoolPods:
    """Endpoints of one InferencePool, watched; its pods are watched anew when its selector or ports change."""

    api: Any
    namespace: str
    name: str
    load_port: int
    ranks: int
    changed: OnEndpoints
    trouble: OnTrouble
    _target: Target | None = None
    _pods: asyncio.Task[None] | None = None
    _troubles: dict[str, str] = field(default_factory=dict)

    async def run(self) -> None:
        """Watch until cancelled. A pool that cannot be used is trouble, and the last endpoints stand."""
        pool = Watcher(
            self.api,
            f"/apis/inference.networking.k8s.io/v1/namespaces/{self.namespace}/inferencepools",
            field_selector=f"metadata.name={self.name}",
            changed=self._read,
            trouble=lambda line: self._say("api", line),
        )
        try:
            await pool.run()
        finally:
            await self._end_pods()

    def _read(self, pools: list[Object]) -> None:
        if not pools:
            self._say("pool", f"InferencePool {self.namespace}/{self.name} does not exist")
            self._watch_pods(None)
            self.changed([])
            return
        try:
            target = target_of(pools[0])
        except KubeError as error:
            self._say("pool", f"InferencePool {self.namespace}/{self.name}: {error}")
            return
        self._say("pool", "")
        if target != self._target:
            self._watch_pods(target)

    def _watch_pods(self, target: Target | None) -> None:
        before, self._pods, self._target = self._pods, None, target
        if before is not None:
            before.cancel()
        if target is None:
            return

        def read(pods: list[Object]) -> None:
            if self._target is target:
                self.changed(endpoints_from_pods(pods, ports=target.ports, load_port=self.load_port, ranks=self.ranks))

        watcher = Watcher(
            self.api,
            f"/api/v1/namespaces/{self.namespace}/pods",
            label_selector=target.selector,
            changed=read,
            trouble=lambda line: self._say("pods", line),
        )
        self._pods = asyncio.get_running_loop().create_task(watcher.run())

    async def _end_pods(self) -> None:
        pods, self._pods = self._pods, None
        if pods is not None:
            pods.cancel()
            await asyncio.gather(pods, return_exceptions=True)

    def _say(self, about: str, line: str) -> None:
        self._troubles[about] = line
        self.trouble("; ".join(filter(None, self._troubles.values())))
