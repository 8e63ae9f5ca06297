"""What docs/install.md and docs/first-serving.md tell a newcomer to do, on the node: vLLM on the CPU with LARRY."""

import json
import time
from collections.abc import Iterator

import openai
import pytest
import yaml

from tests.cluster.conftest import MakeNamespace
from tests.cluster.images import documented_model
from tests.cluster.node import RELEASE, SLOW, SYSTEM, Cluster
from tests.cluster.servings import Manifest, Serving, uid
from tests.operator.docs.pages import FIRST

TEN_MINUTES = 600


@pytest.fixture(scope="module")
def tiny(vllm: Cluster, namespaces: MakeNamespace) -> Iterator[Serving]:
    """The manifest of the page as it stands, applied and ready."""
    _, text = next(FIRST.blocks("yaml"))
    namespace = namespaces("llm")
    began = time.monotonic()
    vllm.kubectl("apply", "--filename", "-", namespace=namespace, stdin=text)
    serving = Serving(vllm, namespace, yaml.safe_load(text)["metadata"]["name"])
    try:
        serving.kubectl("wait", "--for=condition=Ready", f"llms/{serving.name}", f"--timeout={TEN_MINUTES}s")
        serving.settled()
        print(f"ready {time.monotonic() - began:.0f} s after kubectl apply")  # noqa: T201  pytest shows it with -rP
        print(serving.kubectl("get", "llms"))  # noqa: T201
        yield serving
    finally:
        vllm.kubectl("delete", "namespace", namespace, "--wait=false")


def stream(serving: Serving, question: str) -> str:
    """A chat completion, streamed, by OpenAI's own client."""
    client = openai.OpenAI(base_url=serving.url, api_key="none", max_retries=0, timeout=SLOW)
    pieces = client.chat.completions.create(
        model=documented_model(), stream=True, messages=[{"role": "user", "content": question}], max_tokens=16
    )
    return "".join(piece.choices[0].delta.content or "" for piece in pieces)


def test_helm_test_passes(cluster: Cluster) -> None:
    said = cluster.helm("test", RELEASE, "--namespace", SYSTEM, "--timeout", f"{SLOW}s")
    assert "Phase:          Succeeded" in said or "Phase: Succeeded" in said, said


def test_the_documented_example_answers_a_streamed_chat(tiny: Serving) -> None:
    assert stream(tiny, "Why is the sky blue?")
    body = tiny.body()
    assert body["status"]["url"] == f"http://tiny-gateway.{tiny.namespace}.svc/v1"


def test_an_engine_that_is_deleted_while_vllm_starts_ends_at_once(tiny: Serving) -> None:
    """As process 1 of its container vLLM would lose the signal and stay for all of its grace."""
    tiny.kubectl("scale", "llms", tiny.name, "--replicas=2")
    tiny.wait("the second engine starts", lambda: len(tiny.engines()) == 2 and _starts(tiny.engines()[1]))
    second = tiny.engines()[1]
    tiny.kubectl("delete", "pod", second["metadata"]["name"], "--wait=false")
    tiny.wait("it is gone", lambda: uid(second) not in {uid(pod) for pod in tiny.engines()}, within=60)
    tiny.settled(within=TEN_MINUTES)


def test_two_engines_order_by_larry_and_survive_a_change_of_alpha(tiny: Serving) -> None:
    """vLLM itself under load: scaled to two replicas, then rolled."""
    with tiny.load(rate=1.0, output_tokens=16) as load:
        tiny.kubectl("scale", "llms", tiny.name, "--replicas=2")
        tiny.settled(within=TEN_MINUTES)
        before = {uid(pod) for pod in tiny.engines()}
        load.more(10)
        addresses = {pod["status"]["podIP"] for pod in tiny.engines()}
        tiny.wait("SAL uses both engines", lambda: addresses <= set(tiny.logged().values()))
        tiny.patch(scheduler={"policy": "LARRY", "larry": {"alpha": 500}})
        tiny.wait("the engines roll", lambda: not before & {uid(pod) for pod in tiny.engines()}, within=TEN_MINUTES)
        tiny.settled(within=TEN_MINUTES)
        load.more(10)
    assert not load.failed(), load.failed()[:5]
    for pod in tiny.engines():
        path = f"/api/v1/namespaces/{tiny.namespace}/pods/{pod['metadata']['name']}:9400/proxy/load"
        assert json.loads(tiny.kubectl("get", "--raw", path))["scheduler"] == "LARRY"


def _starts(pod: Manifest) -> bool:
    """Whether vLLM's process is there and does not serve yet."""
    return any("running" in one["state"] and not one["started"] for one in pod["status"].get("containerStatuses", []))
