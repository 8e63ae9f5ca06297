"""What stops the start, with a message that names it; and the plain `vllm serve`, as a user runs it."""

import socket
from pathlib import Path
from typing import Any

import pytest

from . import serving
from .client import Client, prompt
from .serving import Launcher, Server, StartError


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"alfa": 1}, "larry.alfa is no setting; there are policy, alpha, load_port"),
        ({"alpha": -1}, "larry.alpha must be a finite number of at least 0, not -1"),
        ({"policy": "larry"}, "larry.policy must be one of LARRY, LARRYPlus, FCFS, not 'larry'"),
    ],
)
def test_a_bad_setting_stops_the_start_before_the_model_is_loaded(
    launcher: Launcher, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    setup = serving.larry(options=options)
    with pytest.raises(StartError) as caught, serving.running(setup, launcher, tmp_path):
        pass
    assert said in caught.value.log
    assert "Loading" not in caught.value.log.split(said)[0].replace("Loading plugin", "")


def test_the_class_for_async_scheduling_names_the_other(launcher: Launcher, tmp_path: Path) -> None:
    setup = serving.larry(scheduler="halffull_larry.Scheduler")  # the CPU platform turns async scheduling off
    with pytest.raises(StartError) as caught, serving.running(setup, launcher, tmp_path):
        pass
    assert "use --scheduler-cls halffull_larry.SyncScheduler" in caught.value.log


def test_the_class_without_async_scheduling_names_the_other(launcher: Launcher, tmp_path: Path) -> None:
    setup = serving.larry("--async-scheduling", env=serving.ASYNC)
    with pytest.raises(StartError) as caught, serving.running(setup, launcher, tmp_path):
        pass
    assert "use --scheduler-cls halffull_larry.Scheduler, or add --no-async-scheduling" in caught.value.log


def test_a_load_port_in_use_is_named(launcher: Launcher, tmp_path: Path) -> None:
    server = Server(serving.larry(), launcher, tmp_path)
    with socket.create_server(("127.0.0.1", server.load_ports[0])):
        try:
            with pytest.raises(StartError) as caught:
                server.wait()
        finally:
            server.stop()
    assert (
        f"port {server.load_ports[0]} (larry.load_port {server.load_ports[0]} + data_parallel_index 0)"
        in caught.value.log
    )


async def test_the_command_itself(launcher: Launcher, tmp_path: Path) -> None:
    with serving.running(serving.larry(cold=True), launcher, tmp_path) as server:
        assert "The waiting queue is in the order of LARRY with alpha = 1" in server.log
        async with Client(server) as client:
            assert (await client.complete(prompt(100), 10)).ok
            report = await client.load()
    assert (report["scheduler"], report["requests"], report["generation_tokens"]) == ("LARRY", 1, 10)
    assert server.exit_code() == 0


async def test_a_prompt_larger_than_the_cache(launcher: Launcher, tmp_path: Path) -> None:
    """Newer releases do not start with such a cache; on older ones the client is told, and nobody waits behind it."""
    setup = serving.larry("--num-gpu-blocks-override=20", "--max-model-len=2048")  # 19 blocks of 32 tokens
    if serving.RELEASE >= (0, 32):
        with pytest.raises(StartError) as caught, serving.running(setup, launcher, tmp_path):
            pass
        assert "larger than the available KV cache memory" in caught.value.log
        return
    with serving.running(setup, launcher, tmp_path) as server:
        async with Client(server) as client:
            giant = await client.complete(prompt(1000), 5, stream=False)
        assert giant.status == 400
        assert "1000 tokens" in (giant.error or "")
        assert "holds 608" in (giant.error or "")
        async with Client(server) as client:
            # These releases take a stream's prompt apart when its headers are out: the 400 is an event.
            giant = await client.complete(prompt(1000), 5)
            assert giant.texts == {}
            assert '"code": 400' in (giant.error or "")
            assert (await client.complete(prompt(50), 5)).ok
            assert (await client.metrics())["halffull_larry_refused_prompts_total"] == 2
