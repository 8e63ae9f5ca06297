"""ADS as a state machine: what an Envoy asks, what it is told, and what it is not told again."""

from typing import Any

import pytest
from envoy.service.discovery.v3 import discovery_pb2
from google.rpc import status_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from halffull_extproc.endpoint import Endpoint
from halffull_extproc.policies import Policy
from halffull_extproc.tls import TlsFiles
from halffull_extproc.xds.ads import AdsServer, MalformedRequestError, Session
from halffull_extproc.xds.gateway_config import GatewayConfig
from halffull_extproc.xds.resources import CLUSTER, CLUSTERS, ENDPOINTS, LISTENER, ROUTE, SECRET

ENGINES = [Endpoint("10.0.0.1:8000"), Endpoint("[fd00::1]:8000")]


def server(*, known: bool = True, tls: bool = False) -> AdsServer:
    config = GatewayConfig(tls=TlsFiles("/tls/tls.crt", "/tls/tls.key") if tls else None)
    made = AdsServer(config, policy=Policy.SAL, fail_open=True)
    if known:
        made.set_endpoints(ENGINES)
    return made


def session(of: AdsServer) -> Session:
    return Session(of._told)


def ask(
    type_url: str, names: tuple[str, ...] = (), *, version: str = "", nonce: str = "", error: str | None = None
) -> bytes:
    request = discovery_pb2.DiscoveryRequest(
        type_url=type_url, resource_names=names, version_info=version, response_nonce=nonce
    )
    if error is not None:
        request.error_detail.CopyFrom(status_pb2.Status(code=3, message=error))
    data: bytes = request.SerializeToString()
    return data


def decoded(responses: list[bytes]) -> list[Any]:
    return [discovery_pb2.DiscoveryResponse.FromString(response) for response in responses]


def one(responses: list[bytes]) -> Any:
    (response,) = decoded(responses)
    return response


def acked(to: Session, response: Any, names: tuple[str, ...] = ()) -> list[bytes]:
    return to.receive(ask(response.type_url, names, version=response.version_info, nonce=response.nonce))


def subscribed(of: AdsServer) -> tuple[Session, dict[str, Any]]:
    """A session of an Envoy that has everything, and its last responses by type."""
    made = session(of)
    last = {}
    for type_url, names in ((CLUSTER, ()), (ENDPOINTS, CLUSTERS), (LISTENER, ()), (ROUTE, ("ingress",))):
        response = one(made.receive(ask(type_url, names)))
        assert acked(made, response, names) == []
        last[type_url] = response
    return made, last


def test_a_new_envoy_gets_each_type_once_and_an_ack_is_no_question() -> None:
    _, last = subscribed(server())
    assert [len(last[t].resources) for t in (CLUSTER, ENDPOINTS, LISTENER, ROUTE)] == [3, 3, 1, 1]
    assert len({response.nonce for response in last.values()}) == 4
    assert {resource.type_url for response in last.values() for resource in response.resources} == set(last)


def test_only_what_was_asked_for_by_name() -> None:
    made = session(server())
    assert len(one(made.receive(ask(ENDPOINTS, ("engines",)))).resources) == 1
    assert len(one(made.receive(ask(ROUTE, ("somebody-else-s",)))).resources) == 0
    assert len(one(made.receive(ask(LISTENER, ("*",)))).resources) == 1


def test_more_names_are_answered_fewer_are_not() -> None:
    made = session(server())
    first = one(made.receive(ask(ENDPOINTS, ("engines",))))
    more = one(acked(made, first, CLUSTERS))
    assert (len(more.resources), more.nonce != first.nonce) == (3, True)
    assert acked(made, more, ("engines",)) == []


def test_a_reconnecting_envoy_s_versions_and_nonces_are_foreign_and_served() -> None:
    for version in ("", "another-7", server()._told[CLUSTER].version):
        made = session(server())
        for type_url, names in ((CLUSTER, ()), (ENDPOINTS, CLUSTERS), (LISTENER, ()), (ROUTE, ("ingress",))):
            assert one(made.receive(ask(type_url, names, version=version, nonce="3"))).resources


def test_an_envoy_that_claims_our_very_version_is_told_all_the_same() -> None:
    of = server()
    response = one(session(of).receive(ask(CLUSTER, version=of._told[CLUSTER].version, nonce="0")))
    assert len(response.resources) == 3


def test_versions_are_unique_across_processes() -> None:
    versions = [told.version for _ in range(3) for told in server()._told.values()]
    assert len(set(versions)) == len(versions)


def test_clusters_are_always_followed_by_endpoints_with_a_new_nonce() -> None:
    of = server()
    made, last = subscribed(of)
    made._subscriptions[CLUSTER].version = None  # as if the clusters had changed
    clusters, endpoints = decoded(made.refresh())
    assert (clusters.type_url, endpoints.type_url) == (CLUSTER, ENDPOINTS)
    assert endpoints.nonce not in {response.nonce for response in last.values()}
    assert len(endpoints.resources) == 3
    again = made.receive(ask(CLUSTER, ("engines",), nonce=clusters.nonce) if False else ask(CLUSTER, ()))
    assert [response.type_url for response in decoded(again)] == [CLUSTER, ENDPOINTS]


def test_a_policy_swap_sends_the_route_alone() -> None:
    of = server()
    made, _ = subscribed(of)
    for policy, fail_open in ((Policy.LeastRequest, True), (Policy.SAL, False), (Policy.Random, False)):
        of.set_route(policy, fail_open)
        response = one(made.refresh())
        assert (response.type_url, response.version_info) == (ROUTE, of._told[ROUTE].version)
        assert made.refresh() == []
        assert acked(made, response, ("ingress",)) == []


def test_a_change_of_engines_sends_endpoints_alone() -> None:
    of = server()
    made, _ = subscribed(of)
    of.set_endpoints(ENGINES[:1])
    assert one(made.refresh()).type_url == ENDPOINTS
    of.set_endpoints([])
    response = one(made.refresh())
    assert len(response.resources) == 3  # three empty sets: the clusters are warm, and say 503 at once


def test_what_did_not_change_is_not_sent_again() -> None:
    of = server()
    made, _ = subscribed(of)
    version = of._told[ENDPOINTS].version
    of.set_endpoints(reversed(ENGINES))
    of.set_route(Policy.SAL, True)
    assert (made.refresh(), of._told[ENDPOINTS].version) == ([], version)


def test_endpoints_that_are_not_known_yet_are_not_said_to_be_none() -> None:
    of = server(known=False)
    made = session(of)
    made.receive(ask(CLUSTER))
    assert made.receive(ask(ENDPOINTS, CLUSTERS, version="another-3", nonce="7")) == []
    assert made.refresh() == []
    of.set_endpoints(ENGINES)
    assert len(one(made.refresh()).resources) == 3


def test_a_rejection_is_counted_and_not_answered() -> None:
    of = server()
    made = session(of)
    response = one(made.receive(ask(LISTENER)))
    assert made.receive(ask(LISTENER, nonce=response.nonce, error="Proto constraint validation failed")) == []
    assert made.counts["Listener", "rejected"] == 1
    assert made.counts["Listener", "accepted"] == 0
    assert made.rejection == "Listener: Proto constraint validation failed"
    assert made.refresh() == []  # the same again would be rejected again


def test_after_a_rejection_a_change_is_sent() -> None:
    of = server()
    made, last = subscribed(of)
    made.receive(ask(ROUTE, ("ingress",), nonce=last[ROUTE].nonce, error="no"))
    of.set_route(Policy.Random, True)
    assert one(made.refresh()).type_url == ROUTE


def test_answers_to_replaced_responses_are_passed_over() -> None:
    of = server()
    made, last = subscribed(of)
    of.set_endpoints(ENGINES[:1])
    newer = one(made.refresh())
    assert acked(made, last[ENDPOINTS], CLUSTERS) == []
    assert made.receive(ask(ENDPOINTS, ("engines", "other"), nonce=last[ENDPOINTS].nonce)) == []
    assert made.counts["ClusterLoadAssignment", "ignored"] == 2
    assert acked(made, newer, CLUSTERS) == []


def test_unknown_types_are_passed_over() -> None:
    made = session(server())
    assert made.receive(ask("type.googleapis.com/envoy.service.runtime.v3.Runtime", ("x",))) == []
    assert made.counts == {("other", "ignored"): 1}  # one name, whatever they call it


def test_a_type_that_we_do_not_serve_now_waits() -> None:
    assert session(server(tls=False)).receive(ask(SECRET, ("ingress",))) == []
    assert len(one(session(server(tls=True)).receive(ask(SECRET, ("ingress",)))).resources) == 1


def test_several_envoys_are_told_independently() -> None:
    of = server()
    (one_envoy, _), (other, _) = subscribed(of), subscribed(of)
    of.set_endpoints(ENGINES[:1])
    assert one(one_envoy.refresh()).version_info == one(other.refresh()).version_info
    assert one_envoy.refresh() == other.refresh() == []


def test_malformed_requests_end_the_stream() -> None:
    with pytest.raises(MalformedRequestError):
        session(server()).receive(b"\xff\xff")


TYPES = st.sampled_from([CLUSTER, ENDPOINTS, LISTENER, ROUTE, SECRET, "x"])


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.tuples(
            TYPES,
            st.lists(st.sampled_from([*CLUSTERS, "ingress", "*", "x"]), max_size=3),
            st.sampled_from(["", "last", "old", "foreign"]),
            st.booleans(),
            st.sampled_from(["", "", "endpoints", "route"]),
        ),
        max_size=20,
    )
)
def test_any_conversation_ends_with_the_newest_of_everything(steps: list[Any]) -> None:
    of = server(known=False)
    made = session(of)
    nonces: dict[str, list[str]] = {}
    versions: dict[str, str] = {}
    seen: set[str] = set()

    def take(responses: list[bytes]) -> None:
        for index, response in enumerate(decoded(responses)):
            assert response.nonce not in seen
            seen.add(response.nonce)
            nonces.setdefault(response.type_url, []).append(response.nonce)
            versions[response.type_url] = response.version_info
            if response.type_url == CLUSTER and nonces.get(ENDPOINTS) and index + 1 < len(responses):
                assert decoded(responses)[index + 1].type_url == ENDPOINTS

    asked = set()
    for number, (type_url, names, nonce, rejected, change) in enumerate(steps):
        if change == "endpoints":
            of.set_endpoints([Endpoint(f"10.0.0.{number + 1}:80")])
        elif change == "route":
            of.set_route(list(Policy)[number % 5], bool(number % 2))
        take(made.refresh())
        known = nonces.get(type_url, [""])
        chosen = {"": "", "last": known[-1], "old": known[0], "foreign": "foreign"}[nonce]
        take(made.receive(ask(type_url, tuple(names), nonce=chosen, error="no" if rejected else None)))
        asked.add(type_url)
    take(made.refresh())
    assert made.refresh() == []
    for type_url in asked & set(of._told):
        assert versions[type_url] == of._told[type_url].version
