"""vLLM's command line and environment."""

import json
from typing import Any

import pytest

from halffull_extproc.xds.resources import _UPSTREAM_IDLE
from halffull_larry.config import LarryConfig
from halffull_operator.spec import SpecError
from tests.operator.children.family import children, engine, environment


def args(spec: dict[str, Any], more: str = "") -> list[str]:
    found: list[str] = engine(children(spec, more))["args"]
    return found


def value(found: list[str], flag: str) -> str | None:
    return next((item.partition("=")[2] for item in found if item.startswith(f"--{flag}=")), None)


def test_the_command() -> None:
    of = engine(children({"model": {"uri": "hf://a/b@v1", "servedNames": ["x", "y"]}, "engine": {"maxModelLen": 4096}}))
    assert of["command"] == ["vllm", "serve"]
    assert of["args"][:4] == ["a/b", "--served-model-name", "x", "y"]
    assert {"--revision=v1", "--host=::", "--port=8000", "--max-model-len=4096"} <= set(of["args"])


def test_parallelism() -> None:
    found = args({"engine": {"parallelism": {"tensor": 2, "pipeline": 3, "data": 4}}})
    assert [value(found, f"{kind}-parallel-size") for kind in ("tensor", "pipeline", "data")] == ["2", "3", "4"]


@pytest.mark.parametrize(
    ("scheduler", "larry"),
    [
        ({}, {"policy": "LARRY", "alpha": 1.0}),
        ({"larry": {"alpha": 500}}, {"policy": "LARRY", "alpha": 500.0}),
        ({"policy": "LARRYPlus"}, {"policy": "LARRYPlus"}),
        ({"policy": "FCFS"}, {"policy": "FCFS"}),
    ],
)
@pytest.mark.parametrize("listen", ["::", "0.0.0.0"])
def test_the_plugin_understands_what_it_is_told(scheduler: dict[str, Any], larry: dict[str, Any], listen: str) -> None:
    found = args({"scheduler": scheduler}, f"listen: '{listen}'\n")
    told = json.loads(value(found, "additional-config") or "")
    config = LarryConfig.of(told)
    assert {"policy": config.policy, **({"alpha": config.alpha} if "alpha" in larry else {})} == larry
    assert (config.load_port, config.load_host, config.strict) == (9400, listen, False)
    assert value(found, "scheduler-cls") == "halffull_larry.Scheduler"
    assert value(found, "host") == listen


@pytest.mark.parametrize(
    ("engine_spec", "more", "name", "added"),
    [
        ({"gpuResource": "none"}, "", "SyncScheduler", True),
        ({}, "engine: {gpuResource: none}\n", "SyncScheduler", True),
        ({"args": ["--no-async-scheduling"]}, "", "SyncScheduler", False),
        ({"parallelism": {"pipeline": 2}}, "", "SyncScheduler", True),
        ({"parallelism": {"pipeline": 2}, "args": ["--async-scheduling"]}, "", "Scheduler", False),
        ({}, "", "Scheduler", False),
    ],
)
def test_the_scheduler_suits_the_way_of_scheduling(
    engine_spec: dict[str, Any], more: str, name: str, *, added: bool
) -> None:
    found = args({"engine": engine_spec}, more)
    assert value(found, "scheduler-cls") == f"halffull_larry.{name}"
    ours = [item for item in found if item not in engine_spec.get("args", [])]
    assert ("--no-async-scheduling" in ours) is added


def test_stock_says_nothing_about_the_scheduler() -> None:
    found = args({"scheduler": {"policy": "Stock"}, "engine": {"gpuResource": "none"}})
    assert not [item for item in found if "scheduler" in item or "additional" in item or "async" in item]


def test_a_bucket_is_streamed_unless_the_person_knows_better() -> None:
    model = {"model": {"uri": "s3://bucket/llama"}}
    assert args(model)[0] == "s3://bucket/llama"
    assert value(args(model), "load-format") == "runai_streamer"
    assert [i for i in args({**model, "engine": {"args": ["--load-format", "dummy"]}}) if "load-format" in i] == [
        "--load-format"
    ]
    assert value(args({}), "load-format") is None


def test_the_persons_flags_come_last() -> None:
    assert args({"engine": {"args": ["--seed", "1"]}})[-2:] == ["--seed", "1"]


def test_keep_alive_is_above_envoys_idle_timeout() -> None:
    assert int(environment(engine(children()))["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"]) > int(_UPSTREAM_IDLE.rstrip("s"))


def test_the_persons_environment_replaces_ours_and_pythonpath_is_joined() -> None:
    env = [{"name": "HOME", "value": "/x"}, {"name": "PYTHONPATH", "value": "/mine"}]
    found = environment(engine(children({"engine": {"env": env}})))
    assert (found["HOME"], found["PYTHONPATH"]) == ("/x", "/opt/halffull/larry:/mine")
    assert environment(engine(children()))["PYTHONPATH"] == "/opt/halffull/larry"
    stock = {"scheduler": {"policy": "Stock"}}
    assert environment(engine(children({**stock, "engine": {"env": env}})))["PYTHONPATH"] == "/mine"
    assert "PYTHONPATH" not in environment(engine(children(stock)))


def test_pythonpath_from_elsewhere_cannot_be_joined() -> None:
    env = [{"name": "PYTHONPATH", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]
    with pytest.raises(SpecError, match="PYTHONPATH needs value"):
        children({"engine": {"env": env}})


def test_proxies_reach_the_engines_in_both_spellings() -> None:
    more = "proxy: {httpsProxy: 'http://proxy:3128', noProxy: .svc}\n"
    found = environment(engine(children(None, more)))
    assert found["HTTPS_PROXY"] == found["https_proxy"] == "http://proxy:3128"
    assert found["NO_PROXY"] == found["no_proxy"] == ".svc"
    assert "HTTP_PROXY" not in found
