"""Envoy's configuration: what each part of GatewayConfig, policy and failure mode comes to."""

import hashlib
import os
import subprocess
import sys
from typing import Any

import pytest
import yaml
from envoy.config.bootstrap.v3 import bootstrap_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.extensions.resource_monitors.downstream_connections.v3 import downstream_connections_pb2
from google.protobuf import any_pb2, json_format, struct_pb2

from halffull_extproc.endpoint import Endpoint, Health
from halffull_extproc.policies import Policy
from halffull_extproc.tls import SelfSigned, TlsFiles
from halffull_extproc.xds.bootstrap import bootstrap
from halffull_extproc.xds.encoding import encode
from halffull_extproc.xds.gateway_config import GatewayConfig
from halffull_extproc.xds.json_form import socket_address
from halffull_extproc.xds.listener import listener
from halffull_extproc.xds.resources import clusters, duration, load_assignments, route, secret

REGISTERED = (downstream_connections_pb2,)

CONFIG = GatewayConfig()
PROGRAM = """
import hashlib
from halffull_extproc.endpoint import Endpoint
from halffull_extproc.policies import Policy
from halffull_extproc.tls import TlsFiles
from halffull_extproc.xds.encoding import encode
from halffull_extproc.xds.listener import listener
from halffull_extproc.xds.gateway_config import GatewayConfig
from halffull_extproc.xds.resources import clusters, load_assignments, route
config = GatewayConfig(tls=TlsFiles("/tls/tls.crt", "/tls/tls.key"))
for resources in ([listener(config)], clusters(), load_assignments([Endpoint("10.0.0.1:80")]),
                  [route(config, policy=Policy.SAL, fail_open=True)]):
    print(hashlib.sha256(b"".join(encode(resource) for resource in resources)).hexdigest())
"""


def test_every_process_serialises_alike() -> None:
    """Else a restarted picker would send "another" listener, and Envoy would drain every connection."""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            check=True,
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
        ).stdout
        for seed in range(1, 4)
    }
    assert len(outputs) == 1
    config = GatewayConfig(tls=TlsFiles("/tls/tls.crt", "/tls/tls.key"))
    assert hashlib.sha256(encode(listener(config))).hexdigest().encode() in outputs.pop()


def test_maps_inside_of_a_packed_part_are_in_order() -> None:
    fields = {f"key{n}": "x" for n in range(50)}
    log = {"@type": "type.googleapis.com/google.protobuf.Struct", "value": fields}
    packed = any_pb2.Any.FromString(encode({"@type": "type.googleapis.com/google.protobuf.Any", "value": log}))
    struct = struct_pb2.Struct()
    struct.update(fields)
    assert struct.SerializeToString(deterministic=True) in packed.value


def test_a_field_that_envoy_does_not_know_is_an_error() -> None:
    with pytest.raises(json_format.ParseError):
        encode({**listener(CONFIG), "nmae": "x"})


def _routes(**kwargs: Any) -> list[Any]:
    config = GatewayConfig(**{key: kwargs.pop(key) for key in list(kwargs) if key not in ("policy", "fail_open")})
    built = route(config, policy=kwargs.get("policy", Policy.SAL), fail_open=kwargs.get("fail_open", True))
    encode(built)
    routes: list[Any] = built["virtual_hosts"][0]["routes"]
    return routes


@pytest.mark.parametrize(
    ("policy", "cluster", "picked"),
    [
        (Policy.SAL, "engines", True),
        (Policy.SALPlus, "engines", True),
        (Policy.LeastRequest, "engines", False),
        (Policy.RoundRobin, "engines-round-robin", False),
        (Policy.Random, "engines-random", False),
    ],
)
@pytest.mark.parametrize("fail_open", [True, False])
def test_policy_and_failure_mode_stand_in_the_route(
    policy: Policy, cluster: str, *, picked: bool, fail_open: bool
) -> None:
    for each in _routes(policy=policy, fail_open=fail_open)[:-1]:
        assert each["route"]["cluster"] == cluster
        (ext_proc,) = each["typed_per_filter_config"].values()
        assert ext_proc.get("disabled", False) is not picked
        if picked:
            assert ext_proc["overrides"] == {"failure_mode_allow": fail_open}


def test_the_listener_knows_neither_policy_nor_engines() -> None:
    text = str(listener(CONFIG))
    assert "engines" not in text
    assert "ads" in text


def test_paths_are_exact_or_all_below() -> None:
    *served, refused = _routes(paths=("/v1/*", "/health", "/*"))
    assert [each["match"] for each in served] == [{"prefix": "/v1/"}, {"path": "/health"}, {"prefix": "/"}]
    assert refused["direct_response"]["status"] == 404


def test_size_limit_comes_first_and_only_when_asked_for() -> None:
    assert _routes()[0]["name"] == "engines"
    assert _routes(max_request_bytes=10)[0]["direct_response"]["status"] == 413


def test_two_attempts_in_all_and_never_the_same_host_twice() -> None:
    retry = _routes()[0]["route"]["retry_policy"]
    assert retry["num_retries"] == 1
    assert retry["retry_on"] == "connect-failure,refused-stream,reset-before-request"
    assert "previous_hosts" in retry["retry_host_predicate"][0]["name"]


def test_engines_once_per_name_with_their_health() -> None:
    endpoints = [
        Endpoint("10.0.0.2:8000", health=Health.DRAINING),
        Endpoint("[fd00::1]:8000", health=Health.UNHEALTHY),
        Endpoint("10.0.0.1:8000"),
    ]
    assignments = load_assignments(endpoints)
    assert [each["cluster_name"] for each in assignments] == [each["name"] for each in clusters()]
    for each in assignments:
        hosts = each["endpoints"][0]["lb_endpoints"]
        found = [(host["endpoint"]["address"]["socket_address"], host["health_status"]) for host in hosts]
        assert found == [
            ({"address": "10.0.0.1", "port_value": 8000}, "HEALTHY"),
            ({"address": "10.0.0.2", "port_value": 8000}, "DRAINING"),
            ({"address": "fd00::1", "port_value": 8000}, "UNHEALTHY"),
        ]
    assert load_assignments(endpoints) == load_assignments(reversed(endpoints))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("0.0.0.0:80", {"address": "0.0.0.0", "port_value": 80}),
        ("[::]:80", {"address": "::", "port_value": 80, "ipv4_compat": True}),
        ("[::1]:80", {"address": "::1", "port_value": 80}),
    ],
)
def test_addresses(address: str, expected: dict[str, Any]) -> None:
    assert socket_address(address) == {"socket_address": expected}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (0.1, "0.1s"), (600, "600s"), (1e-6, "0.000001s"), (100.5, "100.5s")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_certificate_is_a_file_in_a_watched_folder_and_never_in_the_listener() -> None:
    tls = TlsFiles("/tls/tls.crt", "/tls/tls.key")
    built = secret(tls)["tls_certificate"]
    assert built["watched_directory"] == {"path": "/tls"}
    data = encode(listener(GatewayConfig(tls=tls)))
    assert b"/tls/tls.crt" not in data
    assert encode(secret(tls))
    decoded = listener_pb2.Listener()
    any_pb2.Any.FromString(data).Unpack(decoded)
    assert decoded.filter_chains[0].HasField("transport_socket")
    assert b"transport_socket" not in encode(listener(CONFIG))


@pytest.mark.parametrize(
    ("picker", "address"),
    [
        ("unix:/run/halffull/picker.sock", {"pipe": {"path": "/run/halffull/picker.sock"}}),
        ("[::]:9002", {"socket_address": {"address": "::1", "port_value": 9002}}),
        ("0.0.0.0:9002", {"socket_address": {"address": "127.0.0.1", "port_value": 9002}}),
        ("10.0.0.1:9002", {"socket_address": {"address": "10.0.0.1", "port_value": 9002}}),
    ],
)
@pytest.mark.parametrize("tls", [None, SelfSigned(), TlsFiles("/c", "/k")])
def test_bootstrap_is_one_that_envoy_knows(picker: str, address: Any, tls: TlsFiles | SelfSigned | None) -> None:
    document = yaml.safe_load(bootstrap(picker=picker, tls=tls, admin_port=9901, ready="[::]:9902"))
    json_format.ParseDict(document, bootstrap_pb2.Bootstrap())
    cluster = document["static_resources"]["clusters"][0]
    assert cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"] == address
    assert document["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"
    assert ("transport_socket" in cluster) is (tls is not None)
