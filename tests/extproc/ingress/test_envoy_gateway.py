"""What docs/examples/envoy-gateway.yaml amounts to in Envoy, with the real picker.

Envoy Gateway itself is not here: `as_envoy_gateway_does` is our reading of its translation (its xDS test data show the
same ext_proc filter), with every value taken from the example. What it proves is that these settings do in a real Envoy
what docs/own-ingress.md says of them.
"""

from pathlib import Path
from typing import Any

import yaml

from tests.extproc.ingress.running import DESTINATION, running
from tests.extproc.ingress.test_manifests import ENVOY_GATEWAY, manifests

EARLY = "envoy.extensions.http.early_header_mutation.header_mutation"


def as_envoy_gateway_does(text: str) -> str:
    """docs/examples/envoy.yaml with filter and balancer as Envoy Gateway makes them of envoy-gateway.yaml."""
    parts = manifests(ENVOY_GATEWAY)
    (processor,) = parts["EnvoyExtensionPolicy"]["spec"]["extProc"]
    balancer = parts["BackendTrafficPolicy"]["spec"]["loadBalancer"]
    removed = parts["ClientTrafficPolicy"]["spec"]["headers"]["earlyRequestHeaders"]["remove"]
    assert processor["messageTimeout"] == "100ms"
    assert balancer["type"] == "LeastRequest"

    envoy: dict[str, Any] = yaml.safe_load(text)
    listener = envoy["static_resources"]["listeners"][0]
    connections = listener["filter_chains"][0]["filters"][0]["typed_config"]
    connections["early_header_mutation_extensions"] = [
        {
            "name": "remove",
            "typed_config": {
                "@type": f"type.googleapis.com/{EARLY}.v3.HeaderMutation",
                "mutations": [{"remove": name} for name in removed],
            },
        }
    ]
    ext_proc = connections["http_filters"][0]["typed_config"]
    connections["http_filters"][0]["typed_config"] = {
        "@type": ext_proc["@type"],
        "grpc_service": ext_proc["grpc_service"] | {"timeout": "10s"},
        "message_timeout": "0.1s",
        "failure_mode_allow": processor["failOpen"],
        "allow_mode_override": processor["processingMode"]["allowModeOverride"],
        "processing_mode": {
            "request_header_mode": _sent("request", processor),
            "response_header_mode": _sent("response", processor),
            "request_trailer_mode": "SKIP",
            "response_trailer_mode": "SKIP",
        },
    }
    engines = envoy["static_resources"]["clusters"][0]["load_balancing_policy"]["policies"][0]
    engines["typed_extension_config"]["typed_config"]["override_host_sources"] = balancer["endpointOverride"][
        "extractFrom"
    ]
    return yaml.safe_dump(envoy)


def _sent(direction: str, processor: dict[str, Any]) -> str:
    return "SEND" if direction in processor["processingMode"] else "SKIP"


async def test_picks_are_obeyed_and_clients_do_not_choose(tmp_path: Path) -> None:
    async with running(tmp_path, change=as_envoy_gateway_does) as stack:
        stack.a.queued_tokens = 500_000
        await stack.only(stack.b)
        wish = {DESTINATION: stack.address(stack.a)}
        await stack.only(stack.b, headers=wish)
        await stack.kill_picker()
        # A header is what steers here: with the picker gone a client's would, were it not removed.
        answers = await stack.ask_many(40, headers=wish)
        assert set(answers) == {(200, "a"), (200, "b")}, answers


async def test_a_pick_stays_open_until_the_answer_has_ended(tmp_path: Path) -> None:
    """Envoy Gateway cannot ask for response trailers, which keep the stream open; the picker overrides the mode."""
    async with running(tmp_path, change=as_envoy_gateway_does) as stack:
        await stack.check_that_a_pick_stays_open_until_the_answer_has_ended()
