"""What the managed Envoy is told by ADS (Halffull contract 3), each resource a plain dict in Envoy's own JSON form.

Read it beside Envoy's reference: names and nesting are Envoy's. What may change while running is the route
(policy, failure mode) and the endpoints. Listener, clusters and secret follow from GatewayConfig alone, which is read
at start: a changed listener drains every connection, a changed cluster forgets its requests in flight.
"""

from collections.abc import Iterable
from typing import Any, Final

# Registers the types that the dicts below name by "@type".
from envoy.config.cluster.v3 import cluster_pb2 as _cluster
from envoy.config.endpoint.v3 import endpoint_pb2 as _endpoint
from envoy.config.route.v3 import route_pb2 as _route
from envoy.extensions.filters.http.ext_proc.v3 import ext_proc_pb2 as _ext_proc
from envoy.extensions.load_balancing_policies.least_request.v3 import least_request_pb2 as _least_request
from envoy.extensions.load_balancing_policies.override_host.v3 import override_host_pb2 as _override_host
from envoy.extensions.load_balancing_policies.random.v3 import random_pb2 as _random
from envoy.extensions.load_balancing_policies.round_robin.v3 import round_robin_pb2 as _round_robin
from envoy.extensions.retry.host.previous_hosts.v3 import previous_hosts_pb2 as _previous_hosts
from envoy.extensions.transport_sockets.tls.v3 import tls_pb2 as _tls
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2 as _http_protocol_options

from halffull_extproc import wire
from halffull_extproc.addresses import split_address
from halffull_extproc.endpoint import Endpoint, Health
from halffull_extproc.policies import Policy
from halffull_extproc.tls_config import TlsFiles
from halffull_extproc.xds.gateway_config import GatewayConfig
from halffull_extproc.xds.json_form import ADS_SOURCE, CIRCUIT_BREAKERS, TYPE, Resource

REGISTERED: Final = (
    _cluster,
    _endpoint,
    _route,
    _ext_proc,
    _least_request,
    _override_host,
    _random,
    _round_robin,
    _previous_hosts,
    _tls,
    _http_protocol_options,
)

LISTENER: Final = TYPE + "envoy.config.listener.v3.Listener"
ROUTE: Final = TYPE + "envoy.config.route.v3.RouteConfiguration"
CLUSTER: Final = TYPE + "envoy.config.cluster.v3.Cluster"
ENDPOINTS: Final = TYPE + "envoy.config.endpoint.v3.ClusterLoadAssignment"
SECRET: Final = TYPE + "envoy.extensions.transport_sockets.tls.v3.Secret"

INGRESS: Final = "ingress"
"""Name of the listener, of its route and of its certificate."""
ENGINES: Final = "engines"
ENGINES_ROUND_ROBIN: Final = "engines-round-robin"
ENGINES_RANDOM: Final = "engines-random"
CLUSTERS: Final = (ENGINES, ENGINES_ROUND_ROBIN, ENGINES_RANDOM)
EXT_PROC_FILTER: Final = "envoy.filters.http.ext_proc"

NO_ENGINE: Final = "No engine is ready to serve this request. Try again later."

_UPSTREAM_IDLE = "4s"  # uvicorn closes idle connections at 5 s: Envoy must be first, or a request meets a reset
_CONNECT_TIMEOUT = "1s"


def duration(seconds: float) -> str:
    """Write seconds as protobuf's JSON form does."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"


# --- Route ------------------------------------------------------------------------------------------------------------


def route(config: GatewayConfig, *, policy: Policy, fail_open: bool) -> Resource:
    """Build the route `ingress`: policy and failure mode live here, because a route changes without a drain."""
    cluster, filters = _policy(policy, fail_open=fail_open)
    too_large = [] if config.max_request_bytes is None else [_too_large(config.max_request_bytes)]
    return {
        "@type": ROUTE,
        "name": INGRESS,
        # The metadata decides; but no engine, and no proxy before it, should believe what a client wrote either.
        "request_headers_to_remove": [*wire.CONTROL_HEADERS, "x-envoy-original-dst-host"],
        "virtual_hosts": [
            {
                "name": INGRESS,
                "domains": ["*"],
                "routes": [
                    *too_large,
                    *(_served(pattern, config, cluster=cluster, filters=filters) for pattern in config.paths),
                    _refused({"prefix": "/"}, name="refused", status=404, message="This path is not served here."),
                ],
            }
        ],
    }


def _policy(policy: Policy, *, fail_open: bool) -> tuple[str, Resource]:
    """Name the cluster, and the per-route configuration of ext_proc. LeastRequest is the fallback of `engines`."""
    if policy in (Policy.SAL, Policy.SALPlus):
        return ENGINES, _per_route({"overrides": {"failure_mode_allow": fail_open}})
    others = {
        Policy.LeastRequest: ENGINES,
        Policy.RoundRobin: ENGINES_ROUND_ROBIN,
        Policy.Random: ENGINES_RANDOM,
    }
    return others[policy], _per_route({"disabled": True})


def _per_route(config: Resource) -> Resource:
    return {EXT_PROC_FILTER: {"@type": TYPE + "envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute", **config}}


def _served(pattern: str, config: GatewayConfig, *, cluster: str, filters: Resource) -> Resource:
    match = {"prefix": pattern.removesuffix("*")} if pattern.endswith("*") else {"path": pattern}
    return {
        "name": "engines",
        "match": match,
        "route": {
            "cluster": cluster,
            "timeout": duration(config.request_timeout),
            "idle_timeout": duration(config.idle_timeout),
            "retry_policy": {
                # Only what the engine has not begun to answer.
                "retry_on": "connect-failure,refused-stream,reset-before-request",
                "num_retries": 1,
                "retry_host_predicate": [
                    {
                        "name": "envoy.retry_host_predicates.previous_hosts",
                        "typed_config": {
                            "@type": TYPE + "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                        },
                    }
                ],
                "host_selection_retry_max_attempts": "5",
                "retry_back_off": {"base_interval": "0.005s", "max_interval": "0.010s"},
            },
        },
        "request_body_buffer_limit": str(config.retry_buffer_bytes),
        "typed_per_filter_config": filters,
    }


def _refused(match: Resource, *, name: str, status: int, message: str) -> Resource:
    """Answer in the engines' stead; the listener's local_reply_config writes the message as JSON."""
    return {
        "name": name,
        "match": match,
        "direct_response": {"status": status, "body": {"inline_string": message}},
        "typed_per_filter_config": _per_route({"disabled": True}),
    }


def _too_large(limit: int) -> Resource:
    above = {"name": "content-length", "range_match": {"start": str(limit + 1), "end": str(2**63 - 1)}}
    message = f"The request is larger than the {limit} bytes that are allowed here."
    return _refused({"prefix": "/", "headers": [above]}, name="too-large", status=413, message=message)


# --- Clusters and endpoints -------------------------------------------------------------------------------------------


def clusters() -> list[Resource]:
    """Build the three clusters: one per load-balancing policy, the same engines, always present and warm."""
    # Envoy's LeastRequest with two choices (P2C): what a pick falls back to, and a policy in its own right.
    least_request = _lb("least_request", "least_request.v3.LeastRequest", {"choice_count": 2})
    override = {
        # From metadata, which only the picker can set: a header would be the client's to choose.
        "override_host_sources": [{"metadata": {"key": wire.LB_NAMESPACE, "path": [{"key": wire.DESTINATION}]}}],
        "fallback_policy": {"policies": [least_request]},
    }
    return [
        _cluster_of(ENGINES, _lb("override_host", "override_host.v3.OverrideHost", override)),
        _cluster_of(ENGINES_ROUND_ROBIN, _lb("round_robin", "round_robin.v3.RoundRobin", {})),
        _cluster_of(ENGINES_RANDOM, _lb("random", "random.v3.Random", {})),
    ]


def _lb(name: str, message: str, config: Resource) -> Resource:
    return {
        "typed_extension_config": {
            "name": f"envoy.load_balancing_policies.{name}",
            "typed_config": {"@type": TYPE + "envoy.extensions.load_balancing_policies." + message, **config},
        }
    }


def _cluster_of(name: str, policy: Resource) -> Resource:
    return {
        "@type": CLUSTER,
        "name": name,
        "type": "EDS",
        # Its own EDS name: two clusters under one name warm only once (envoyproxy/go-control-plane#59).
        "eds_cluster_config": {"eds_config": ADS_SOURCE, "service_name": name},
        "load_balancing_policy": {"policies": [policy]},
        "common_lb_config": {
            # Under half healthy, Envoy would send to draining and unhealthy hosts too.
            "healthy_panic_threshold": {"value": 0},
            # Envoy keeps changes of health that follow another within a second from its workers until that is over:
            # drained and ejected hosts would go on getting requests.
            "update_merge_window": "0s",
        },
        "connect_timeout": _CONNECT_TIMEOUT,
        "circuit_breakers": CIRCUIT_BREAKERS,
        # For the fallback's sake: a pick is obeyed whatever this says.
        "outlier_detection": {
            "consecutive_5xx": 5,
            # At the first refused or reset connection (and 502 to 504): P2C would go on choosing a dead host, which has
            # the fewest requests in flight, and with two of them dead the one retry meets the other.
            "consecutive_gateway_failure": 1,
            "enforcing_consecutive_gateway_failure": 100,
            "interval": "1s",
            "base_ejection_time": "2s",
            "max_ejection_time": "30s",
            "max_ejection_percent": 50,
        },
        # A prefill may be silent for minutes: find out when the other side is gone.
        "upstream_connection_options": {
            "tcp_keepalive": {"keepalive_time": 30, "keepalive_interval": 10, "keepalive_probes": 3}
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": TYPE + "envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "common_http_protocol_options": {"idle_timeout": _UPSTREAM_IDLE},
                "explicit_http_config": {"http_protocol_options": {}},
            }
        },
    }


def load_assignments(endpoints: Iterable[Endpoint]) -> list[Resource]:
    """Build the engines with their health, once under the name of each cluster, in the order of their addresses."""
    hosts = [_host(endpoint) for endpoint in sorted(endpoints, key=lambda endpoint: endpoint.address)]
    localities: list[dict[str, Any]] = [{"lb_endpoints": hosts}] if hosts else []
    return [{"@type": ENDPOINTS, "cluster_name": name, "endpoints": localities} for name in CLUSTERS]


_HEALTH = {Health.HEALTHY: "HEALTHY", Health.DRAINING: "DRAINING", Health.UNHEALTHY: "UNHEALTHY"}


def _host(endpoint: Endpoint) -> Resource:
    host, port = split_address(endpoint.address)
    address = {"socket_address": {"address": host, "port_value": port}}
    return {"endpoint": {"address": address}, "health_status": _HEALTH[endpoint.health]}


# --- Certificate ------------------------------------------------------------------------------------------------------


def secret(tls: TlsFiles) -> Resource:
    """Build the certificate `ingress`: names of files that Envoy reads, and the folder it watches.

    Kubernetes replaces a mounted secret by moving a link in that folder. Certificates that stand inline in a listener
    do not rotate.
    """
    return {
        "@type": SECRET,
        "name": INGRESS,
        "tls_certificate": {
            "certificate_chain": {"filename": tls.cert_file},
            "private_key": {"filename": tls.key_file},
            "watched_directory": {"path": tls.cert_file.rpartition("/")[0] or "."},
        },
    }
