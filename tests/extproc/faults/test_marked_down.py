"""No choice of the picker, first or second, names a host that EDS marks down, from the same instant on.

Envoy obeys a pick of an unhealthy or draining host, so nobody else would notice.
"""

from typing import Any

import structlog
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from halffull_extproc.app import Picker
from halffull_extproc.endpoint import Endpoint, Health
from halffull_extproc.policies import Policy
from halffull_extproc.pool import Outcome
from halffull_extproc.settings import load_settings
from halffull_extproc.wiring import ConfigSource
from halffull_extproc.xds.ads import Session
from halffull_extproc.xds.resources import ENDPOINTS, ENGINES
from tests.extproc.core.builders import make_report

ADDRESSES = [f"10.0.0.{number}:8000" for number in range(1, 6)]

CONFIG = "version: 1\npolicy: {}\nendpoints: {{file: endpoints.yaml}}\n"

members = st.dictionaries(st.sampled_from(ADDRESSES), st.sampled_from(Health))
happenings = st.lists(
    st.one_of(
        st.tuples(st.just("members"), members),
        st.tuples(st.just("policy"), st.sampled_from(Policy)),
        st.tuples(st.just("report"), st.sampled_from(ADDRESSES)),
        st.tuples(st.just("failed"), st.sampled_from(ADDRESSES)),
        st.tuples(st.just("wait"), st.floats(0.05, 5)),
        st.tuples(st.just("picks"), st.sets(st.sampled_from(ADDRESSES), min_size=1)),
    ),
    min_size=1,
    max_size=20,
)


class Envoy:
    """What an Envoy believes: it takes each push at once."""

    def __init__(self, picker: Picker) -> None:
        self.healthy: set[str] = set()
        self._session = Session(told=picker.ads._told)
        request = discovery_pb2.DiscoveryRequest(type_url=ENDPOINTS, resource_names=[ENGINES])
        self._take(self._session.receive(request.SerializeToString()))

    def refresh(self) -> None:
        self._take(self._session.refresh())

    def _take(self, responses: list[bytes]) -> None:
        for response in responses:
            (resource,) = discovery_pb2.DiscoveryResponse.FromString(response).resources
            assignment: Any = endpoint_pb2.ClusterLoadAssignment()
            resource.Unpack(assignment)
            self.healthy = {
                f"{address['address']}:{address['portValue']}"
                for locality in json_format.MessageToDict(assignment).get("endpoints", [])
                for host in locality["lbEndpoints"]
                for address in [host["endpoint"]["address"]["socketAddress"]]
                if host["healthStatus"] == "HEALTHY"
            }


class Run:
    """A picker and its Envoy; each method is something that happens."""

    def __init__(self, first: dict[str, Health]) -> None:
        self.now = 100.0
        source = ConfigSource(name="picker.yaml")
        settings = load_settings(CONFIG.format("SAL"), source="p")
        self.picker = Picker(settings, source=source, clock=lambda: self.now)
        self.members(first)
        self.envoy = Envoy(self.picker)

    def members(self, healths: dict[str, Health]) -> None:
        self.picker.reconcile([Endpoint(address, health=health) for address, health in healths.items()])

    def policy(self, policy: Policy) -> None:
        self.picker.reconfigure(CONFIG.format(policy))

    def report(self, address: str) -> None:
        self.picker.pool.report(address, make_report(), sent=self.now, now=self.now)

    def failed(self, address: str) -> None:
        for _ in range(5):
            self.picker._outcome(Outcome(picked=address, served=address, failed=(address,), succeeded=None))

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def picks(self, subset: set[str] | None) -> None:
        """Three of them, each checked."""
        eligible = self.envoy.healthy if subset is None else self.envoy.healthy & subset
        for _ in range(3):
            pick = self.picker._pick(body_bytes=100, subset=subset)
            assert (pick is not None) == bool(eligible)
            if pick is not None:
                assert set(pick.addresses) <= eligible
                assert len(set(pick.addresses)) == min(2, len(eligible))


@given(first=members, happenings=happenings)
@settings(max_examples=150, deadline=None)
def test_picks_name_only_hosts_that_envoy_holds_healthy(
    first: dict[str, Health], happenings: list[tuple[str, Any]]
) -> None:
    with structlog.testing.capture_logs():
        run = Run(first)
        run.picks(None)
        for what, detail in happenings:
            getattr(run, what)(detail)
            run.envoy.refresh()
            run.picks(None)
