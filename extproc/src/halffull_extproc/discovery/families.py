"""One address for each pod: several slices or both address families may name the same one."""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from halffull_extproc.addresses import format_address
from halffull_extproc.endpoint import Endpoint, Health

# The cautious word counts where two slices say different things about one pod.
_CAUTION = {Health.HEALTHY: 0, Health.UNHEALTHY: 1, Health.DRAINING: 2}


@dataclass(frozen=True, slots=True)
class Found:
    """One address of one port of one pod."""

    pod: str
    """What tells pods apart: the uid."""
    ip: str
    port: int
    load_port: int
    health: Health
    name: str


def one_per_pod(found: Iterable[Found]) -> list[Endpoint]:
    """Endpoints in the order of their addresses, one for each pod and load port.

    The family that most pods have is taken for all of them (IPv4 when equal), the other one only for a pod that has no
    other, so that a pod keeps its address and its charges are not split over two. What is no IP address is left out.
    """
    pods: dict[tuple[str, int], dict[int, Found]] = {}
    for one in found:
        try:
            family = ipaddress.ip_address(one.ip).version
        except ValueError:
            continue
        known = pods.setdefault((one.pod, one.load_port), {})
        if family not in known or _CAUTION[one.health] > _CAUTION[known[family].health]:
            known[family] = one
    count = {family: sum(family in families for families in pods.values()) for family in (4, 6)}
    preferred, other = (4, 6) if count[4] >= count[6] else (6, 4)
    endpoints: dict[str, Endpoint] = {}
    for families in pods.values():
        chosen = families.get(preferred) or families[other]
        address = format_address(chosen.ip, chosen.port)
        known_as = endpoints.get(address)
        # An address that a new pod took over from one that is leaving belongs to the new one.
        if known_as is None or _CAUTION[chosen.health] < _CAUTION[known_as.health]:
            endpoints[address] = Endpoint(
                address=address, load_port=chosen.load_port, health=chosen.health, name=chosen.name
            )
    return [endpoints[address] for address in sorted(endpoints)]
