"""A vLLM that is not the one we know, a configuration that is not meant, a port that is taken."""

import json
import logging
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import vllm
from vllm.v1.core.sched.scheduler import Scheduler as VLLMScheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import RequestStatus

import halffull_larry
from halffull_larry.config import ConfigError
from tests import ports

from .engine import Engine, Setup, make_request, make_scheduler, vllm_config

OURS = {False: halffull_larry.SyncScheduler, True: halffull_larry.Scheduler}
UNKNOWN = "99.1.0"


@pytest.fixture
def free_port() -> int:
    return ports.free_port()


@pytest.fixture
def unknown_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this were another vLLM."""
    monkeypatch.setattr(vllm, "__version__", UNKNOWN)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Our log, which vLLM keeps from the root logger."""
    logger = logging.getLogger("vllm.halffull_larry")
    logger.addHandler(caplog.handler)
    with caplog.at_level(logging.INFO, logger.name):
        yield caplog
    logger.removeHandler(caplog.handler)


def settings(**more: Any) -> dict[str, Any]:
    return {"load_port": None, **more}


def get(port: int, path: str = "/load") -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        body: bytes = answer.read()
        return body


def closed(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


# Arguments that we do not know.


def test_what_an_override_does_not_know_it_passes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(OURS[False], Setup())
    seen: list[Any] = []

    def taking_more(name: str) -> Any:
        original = getattr(VLLMScheduler, name)

        def method(self: Any, *args: Any, extra: Any = None, **kwargs: Any) -> Any:
            known = len(args) - 1  # the last positional one is new
            seen.append((name, args[known], extra))
            return original(self, *args[:known], **kwargs)

        return method

    for name in ("schedule", "update_from_output", "add_request", "finish_requests", "_free_request", "shutdown"):
        monkeypatch.setattr(VLLMScheduler, name, taking_more(name))
    scheduler = engine.scheduler
    scheduler.add_request(make_request("r", [1, 2], arrival=engine.now), "new", extra=1)
    output = scheduler.schedule("new", extra=2)
    sampled = ModelRunnerOutput(req_ids=["r"], req_id_to_index={"r": 0}, sampled_token_ids=[[]])
    scheduler.update_from_output(output, sampled, "new", extra=3)
    request = scheduler.requests["r"]
    scheduler.finish_requests([], RequestStatus.FINISHED_ABORTED, "new", extra=4)
    request.status = RequestStatus.FINISHED_ABORTED
    scheduler._free_request(request, "new", extra=5)
    scheduler.shutdown("new", extra=6)
    assert seen == [
        ("add_request", "new", 1),
        ("schedule", "new", 2),
        ("update_from_output", "new", 3),
        ("finish_requests", "new", 4),
        ("_free_request", "new", 5),
        ("shutdown", "new", 6),
    ]


# Releases that we do not know.


@pytest.mark.usefixtures("unknown_release")
def test_on_an_unknown_release_it_steps_aside_and_says_so(logged: pytest.LogCaptureFixture) -> None:
    setup = Setup(max_num_seqs=1, larry=settings(alpha=0))
    engine = Engine(OURS[False], setup)
    for name, prompt in (("long", 500), ("middle", 200), ("short", 10)):
        engine.add(name, prompt)
    assert engine.report()["queued_tokens"] == 710
    assert engine.report()["waiting"] == 3
    engine.run()
    assert engine.admissions == ["long", "middle", "short"]  # stock order
    reason = f"vLLM {UNKNOWN} is outside the tested range 0.18 to 0.32"
    assert engine.report()["scheduler"] == f"Stock: {reason}"
    assert reason in logged.text
    metrics = engine.scheduler._metrics().decode()
    assert f'halffull_larry_info{{scheduler="Stock: {reason}",vllm="{UNKNOWN}"}} 1' in metrics
    assert "halffull_larry_active 0" in metrics
    report = engine.report()
    assert (report["requests"], report["prompt_tokens"], report["first_tokens"]) == (3, 710, 3)
    assert (report["queued_tokens"], report["free_tokens"]) == (0, report["total_tokens"])


@pytest.mark.usefixtures("unknown_release")
def test_strict_stops_on_an_unknown_release() -> None:
    with pytest.raises(ConfigError, match=rf"vLLM {UNKNOWN} is outside the tested range .* and larry.strict is set"):
        make_scheduler(OURS[False], Setup(larry=settings(strict=True)))


@pytest.mark.usefixtures("unknown_release")
@pytest.mark.parametrize("name", ["arrived", "admitted", "step_scheduled", "step_done", "ended", "snapshot"])
def test_a_failing_book_keeping_ends_the_report_and_not_the_engine(
    name: str, monkeypatch: pytest.MonkeyPatch, free_port: int, logged: pytest.LogCaptureFixture
) -> None:
    engine = Engine(OURS[False], Setup(larry=settings(load_port=free_port, load_host="127.0.0.1")))
    try:
        assert json.loads(get(free_port))["running"] == 0

        def fail(*_: Any, **__: Any) -> None:
            raise AttributeError("no such thing in this vLLM")

        monkeypatch.setattr(f"halffull_larry.accounts.Accounts.{name}", fail)
        engine.add("r", 100, max_tokens=3)
        engine.run()
        assert engine.outcomes() == {"r": ("length", 3)}
        with pytest.raises(urllib.error.HTTPError) as answer:
            get(free_port)
        assert answer.value.code == 500
        answer.value.close()
        assert "No load report any more on this untested vLLM" in logged.text
    finally:
        engine.scheduler.shutdown()


def test_on_a_tested_release_a_failing_book_keeping_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(OURS[False], Setup())
    monkeypatch.setattr("halffull_larry.accounts.Accounts.snapshot", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.add("r", 100)


# What is not meant.


@pytest.mark.parametrize(
    ("ours", "asynchronous", "hint"),
    [(OURS[True], False, "halffull_larry.SyncScheduler"), (OURS[False], True, "halffull_larry.Scheduler")],
    ids=["async class", "sync class"],
)
def test_a_class_refuses_the_other_ones_configuration(ours: type, *, asynchronous: bool, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"use --scheduler-cls {hint}"):
        make_scheduler(ours, Setup(asynchronous=asynchronous))


@pytest.mark.parametrize(
    ("larry", "named"),
    [({"alfa": 1}, "larry.alfa"), ({"alpha": -1}, "larry.alpha"), ({"policy": "larry"}, "larry.policy"), (7, "larry")],
    ids=str,
)
def test_a_bad_setting_stops_the_start_by_its_name(larry: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make_scheduler(OURS[False], Setup(larry=larry))


# The port.


def test_a_taken_port_stops_the_start_by_its_number() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} .*larry.load_port {port} \+ data_parallel_index 0"):
            make_scheduler(OURS[False], Setup(larry={"load_port": port, "load_host": "127.0.0.1"}))


def test_each_rank_has_a_port_of_its_own_and_closes_it(free_port: int) -> None:
    setup = Setup(larry={"load_port": free_port - 1, "load_host": "127.0.0.1"})
    config = vllm_config(setup)
    config.parallel_config.data_parallel_index = 1
    scheduler = make_scheduler(OURS[False], setup, config)
    try:
        report = json.loads(get(free_port))
        assert (report["rank"], report["version"], report["scheduler"]) == (1, 1, "LARRY")
        assert (report["max_tokens_per_batch"], report["max_model_len"]) == (setup.budget, setup.max_model_len)
        assert b"halffull_larry_active 1" in get(free_port, "/metrics")
    finally:
        scheduler.shutdown()
    assert closed(free_port)
