"""Envoy's bootstrap: where the picker is, and what must be there before it answers."""

from typing import Any, Final

import yaml

from halffull_extproc.tls_config import SelfSigned, TlsFiles
from halffull_extproc.xds.json_form import ADS_SOURCE, CIRCUIT_BREAKERS, PICKER, TYPE, Resource, socket_address

_ADMIN = "admin"
_CLIENT_CONNECTIONS: Final = 100_000
"""Connections of clients, in all: past it new ones are refused before memory or descriptors run out."""
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_UNBOUNDED: Final = 2_147_483_647
_WILDCARDS: Final = {"[::]": "[::1]", "0.0.0.0": "127.0.0.1"}  # noqa: S104 - listened on there, dialled here


def bootstrap(
    *,
    picker: str,
    tls: TlsFiles | SelfSigned | None = None,
    admin_port: int = 9901,
    ready: str = "[::]:9902",
) -> str:
    """Write the bootstrap as YAML.

    Args:
        picker: what the picker listens on, `unix:PATH` or IP:PORT; a wildcard is dialled on loopback.
        tls: as the picker's own port; its certificate is checked only when it is given in a file.
        admin_port: on 127.0.0.1 alone: the admin interface can stop Envoy.
        ready: IP:PORT of the listener that serves `/ready` and `/stats/prometheus`, and nothing else.
    """
    document: Resource = {
        "node": {"id": "halffull-gateway", "cluster": "halffull"},
        "admin": {"address": socket_address(f"127.0.0.1:{admin_port}")},
        "dynamic_resources": {
            "ads_config": {
                "api_type": "GRPC",
                "transport_api_version": "V3",
                "set_node_on_first_message_only": True,
                "grpc_services": [
                    {
                        "envoy_grpc": {
                            "cluster_name": PICKER,
                            # By default up to 30 s after the picker is back.
                            "retry_policy": {"retry_back_off": {"base_interval": "0.1s", "max_interval": "1s"}},
                        }
                    }
                ],
            },
            # 0: wait for the picker, and be not ready until it has answered.
            "lds_config": {**ADS_SOURCE, "initial_fetch_timeout": "0s"},
            "cds_config": {**ADS_SOURCE, "initial_fetch_timeout": "0s"},
        },
        "static_resources": {
            "clusters": [_picker(picker, tls), _static(_ADMIN, socket_address(f"127.0.0.1:{admin_port}"))],
            "listeners": [_ready_listener(ready)],
        },
        "overload_manager": {
            "resource_monitors": [
                {
                    "name": "envoy.resource_monitors.global_downstream_max_connections",
                    "typed_config": {
                        "@type": TYPE
                        + "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                        "max_active_downstream_connections": str(_CLIENT_CONNECTIONS),
                    },
                }
            ]
        },
    }
    return yaml.safe_dump(document, sort_keys=False, width=120)


def _picker(address: str, tls: TlsFiles | SelfSigned | None) -> Resource:
    options = {
        "max_concurrent_streams": _UNBOUNDED,  # each request keeps one ext_proc stream for as long as it lasts
        # To guard itself against strangers Envoy drops a connection on which 10,000 frames wait, or 1,000 of those that
        # end a stream. So many requests can end while the picker is busy, and all others share the connection.
        "max_outbound_frames": _UNBOUNDED,
        "max_outbound_control_frames": _UNBOUNDED,
    }
    cluster = _static(PICKER, _dialled(address))
    cluster["circuit_breakers"] = CIRCUIT_BREAKERS
    cluster["typed_extension_protocol_options"] = {
        _HTTP_OPTIONS: {
            "@type": TYPE + _HTTP_OPTIONS,
            "explicit_http_config": {"http2_protocol_options": options},
        }
    }
    if tls is not None:
        cluster["transport_socket"] = _tls_socket(tls)
    return cluster


def _dialled(address: str) -> Resource:
    if address.startswith("unix:"):
        return {"pipe": {"path": address.removeprefix("unix:")}}
    host, _, port = address.rpartition(":")
    return socket_address(f"{_WILDCARDS.get(host, host)}:{port}")


def _static(name: str, address: Resource) -> Resource:
    hosts: list[dict[str, Any]] = [{"endpoint": {"address": address}}]
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": hosts}]},
    }


def _tls_socket(tls: TlsFiles | SelfSigned) -> Resource:
    trusted = {"validation_context": {"trusted_ca": {"filename": tls.cert_file}}} if isinstance(tls, TlsFiles) else {}
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": TYPE + "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": {"alpn_protocols": ["h2"], **trusted},
        },
    }


def _ready_listener(address: str) -> Resource:
    routes = [
        {
            "match": {"path": path, "headers": [{"name": ":method", "string_match": {"exact": "GET"}}]},
            "route": {"cluster": _ADMIN},
        }
        for path in ("/ready", "/stats/prometheus")
    ]
    manager = {
        "@type": TYPE + "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "ready",
        "normalize_path": True,
        "route_config": {"virtual_hosts": [{"name": "ready", "domains": ["*"], "routes": routes}]},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": TYPE + "envoy.extensions.filters.http.router.v3.Router"},
            }
        ],
    }
    return {
        "name": "ready",
        "address": socket_address(address),
        "ignore_global_conn_limit": True,  # a full gateway is still alive
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
