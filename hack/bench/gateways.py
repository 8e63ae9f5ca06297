"""The Envoys of the bench: one that answers in the engines' stead, and static twins of the managed gateway."""

import copy
from pathlib import Path
from typing import Any

import yaml

from halffull_extproc.policies import Policy
from halffull_extproc.xds.bootstrap import bootstrap
from halffull_extproc.xds.listener import listener
from halffull_extproc.xds.resources import TYPE, GatewayConfig, clusters, route

Resource = dict[str, Any]


def engine(port: int, admin_port: int) -> Resource:
    """An Envoy that answers 200 at once on every loopback address: engines that take no time and little CPU."""
    manager = {
        "@type": TYPE + "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "engine",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "engine",
                    "domains": ["*"],
                    "routes": [
                        {
                            "match": {"prefix": "/"},
                            "direct_response": {"status": 200, "body": {"inline_string": "x" * 200}},
                        }
                    ],
                }
            ]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": TYPE + "envoy.extensions.filters.http.router.v3.Router"},
            }
        ],
    }
    return {
        "admin": {"address": _address("127.0.0.1", admin_port)},
        "static_resources": {
            "listeners": [
                {
                    "name": "engine",
                    "address": _address("0.0.0.0", port),  # noqa: S104 - all of 127.0.0.0/8
                    "filter_chains": [
                        {
                            "filters": [
                                {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
                            ]
                        }
                    ],
                }
            ]
        },
    }


def twin(*, listen: str, picker: Path | None, engines: list[tuple[str, int]], admin_port: int, ready: str) -> Resource:
    """The managed gateway's own listener, route and clusters as a static configuration.

    Args:
        listen: IP:PORT.
        picker: socket of the ext_proc server; None leaves the filter out.
        engines: addresses and ports.
        admin_port: on 127.0.0.1.
        ready: IP:PORT of the readiness listener.
    """
    config = GatewayConfig(listen=listen)
    base: Resource = yaml.safe_load(bootstrap(picker=f"unix:{picker or 'none'}", admin_port=admin_port, ready=ready))
    del base["dynamic_resources"]
    ingress = copy.deepcopy(listener(config))
    manager = ingress["filter_chains"][0]["filters"][0]["typed_config"]
    del manager["rds"], ingress["@type"]
    manager["access_log"] = manager["access_log"][:1]  # the second one goes to the picker
    routes = copy.deepcopy(route(config, policy=Policy.SAL, fail_open=True))
    del routes["@type"]
    if picker is None:
        manager["http_filters"] = manager["http_filters"][1:]
        for each in routes["virtual_hosts"][0]["routes"]:
            del each["typed_per_filter_config"]
    manager["route_config"] = routes
    cluster = copy.deepcopy(clusters()[0])
    del cluster["@type"], cluster["eds_cluster_config"]
    hosts = [{"endpoint": {"address": _address(*engine)}} for engine in engines]
    cluster |= {
        "type": "STATIC",
        "load_assignment": {"cluster_name": cluster["name"], "endpoints": [{"lb_endpoints": hosts}]},
    }
    base["static_resources"]["listeners"].append(ingress)
    base["static_resources"]["clusters"].append(cluster)
    return base


def _address(host: str, port: int) -> Resource:
    return {"socket_address": {"address": host, "port_value": port}}
