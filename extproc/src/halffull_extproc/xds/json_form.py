"""Envoy's configuration in its own JSON form: what the bootstrap and the resources of ADS have in common.

No protobuf here: the bootstrap is printed as YAML, and loading Envoy's types takes half a second.
"""

from typing import Any, Final

Resource = dict[str, Any]
"""A resource as Envoy's documentation writes it; every typed part, and the whole, has its "@type"."""

TYPE: Final = "type.googleapis.com/"
PICKER: Final = "picker"
"""The one static cluster that ext_proc, ADS and access log go to; the bootstrap defines it."""

MAXIMUM: Final = 4_294_967_295
"""Circuit breakers count to 1,024 by default: the excess would be refused, or pass unpicked in silence."""
CIRCUIT_BREAKERS: Final[Resource] = {
    "thresholds": [
        {
            "priority": priority,
            "max_connections": MAXIMUM,
            "max_pending_requests": MAXIMUM,
            "max_requests": MAXIMUM,
            "max_retries": MAXIMUM,
        }
        for priority in ("DEFAULT", "HIGH")
    ]
}
ADS_SOURCE: Final[Resource] = {"ads": {}, "resource_api_version": "V3"}


def socket_address(address: str) -> Resource:
    """Write `10.0.0.1:8000` or `[::1]:8000` in Envoy's form. `[::]` takes IPv4 too."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    dual = {"ipv4_compat": True} if host == "::" else {}
    return {"socket_address": {"address": host, "port_value": int(port), **dual}}
