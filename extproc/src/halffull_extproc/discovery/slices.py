"""Endpoints of a Kubernetes Service, from its EndpointSlices (discovery.k8s.io/v1)."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from halffull_extproc.discovery import OnEndpoints, OnTrouble
from halffull_extproc.discovery.families import Found, one_per_pod
from halffull_extproc.discovery.kube import Object, Watcher
from halffull_extproc.endpoint import Endpoint, Health


def endpoints_from_slices(slices: Iterable[Object], *, port: str | int, load_port: int) -> list[Endpoint]:
    """What the slices of one Service say.

    A pod that is terminating is DRAINING from its deletionTimestamp on; one that does not serve is UNHEALTHY; neither
    is ever picked. A slice without the port is left out, never taken as port 0.

    Args:
        slices: the objects, as the API gives them.
        port: name or number of the port that requests go to.
        load_port: where the engines serve their load report.
    """
    return one_per_pod(_found(slices, port=port, load_port=load_port))


def _found(slices: Iterable[Object], *, port: str | int, load_port: int) -> Iterator[Found]:
    for item in slices:
        if item.get("addressType") not in ("IPv4", "IPv6"):
            continue
        number = _port(item.get("ports"), port)
        if number is None:
            continue
        for endpoint in item.get("endpoints") or []:
            addresses = endpoint.get("addresses") or []
            if not addresses:
                continue
            target = endpoint.get("targetRef") or {}
            name = str(target.get("name") or "")
            yield Found(
                pod=str(target.get("uid") or name or addresses[0]),
                ip=str(addresses[0]),  # the API gives the first one a meaning, and no other
                port=number,
                load_port=load_port,
                health=_health(endpoint.get("conditions") or {}),
                name=name,
            )


def _port(ports: Any, wanted: str | int) -> int | None:
    """The number of the wanted port in a slice, None when it has no such port."""
    if not ports:
        return wanted if isinstance(wanted, int) else None  # a slice without ports restricts none
    for port in ports:
        number = port.get("port")
        if isinstance(number, int) and number > 0 and wanted in (port.get("name") or "", number):
            return number
    return None


def _health(conditions: Mapping[str, Any]) -> Health:
    """The API's reading of absent conditions: ready unknown is ready, serving unknown is what ready says."""
    if conditions.get("terminating"):
        return Health.DRAINING
    ready = conditions.get("ready") is not False
    serving = conditions.get("serving")
    return Health.HEALTHY if (ready if serving is None else serving) else Health.UNHEALTHY


@dataclass(slots=True, kw_only=True)
class ServiceSlices:
    """Endpoints of one Service, watched."""

    api: Any
    namespace: str
    name: str
    port: str | int
    load_port: int
    changed: OnEndpoints
    trouble: OnTrouble

    async def run(self) -> None:
        """Watch until cancelled."""
        lacking = ""

        def read(slices: list[Object]) -> None:
            nonlocal lacking
            self.changed(endpoints_from_slices(slices, port=self.port, load_port=self.load_port))
            has_port = any(_port(item.get("ports"), self.port) is not None for item in slices)
            populated = any(item.get("endpoints") for item in slices)
            lacking = (
                f"no EndpointSlice of Service {self.namespace}/{self.name} has the port {self.port!r}"
                if populated and not has_port
                else ""
            )
            self.trouble(lacking)

        watcher = Watcher(
            self.api,
            f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices",
            label_selector=f"kubernetes.io/service-name={self.name}",
            changed=read,
            trouble=lambda line: self.trouble(line or lacking),
        )
        await watcher.run()
