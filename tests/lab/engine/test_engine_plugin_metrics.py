"""The plugin's metrics of an emulated engine: waits in the reader's seconds, and who was taken before others."""

from halffull_lab.engine_plugin_metrics import PluginMetrics
from halffull_lab.engine_requests import Prompt, Request
from halffull_larry.report import Identity
from halffull_larry.snapshot import Snapshot


def request(name: str, *, tokens: int, arrival: float, admitted: float | None) -> Request:
    made = Request(name, prompt=Prompt(tokens), output_tokens=2, arrival=arrival, priority=0, interval=1)
    made.admitted_at = admitted
    return made


def samples(metrics: PluginMetrics) -> dict[str, float]:
    identity = Identity(scheduler="LARRY", max_tokens_per_batch=1, max_model_len=1)
    text = metrics.text(identity, Snapshot(waiting=1)).decode()
    pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name.removeprefix("halffull_larry_"): float(value) for name, _, value in pairs}


def test_a_wait_is_told_in_the_readers_seconds() -> None:
    metrics = PluginMetrics(speed=10)
    taken = request("a", tokens=300, arrival=100, admitted=120)
    metrics.first_token(taken, requests=[taken])
    read = samples(metrics)
    assert read['waiting_seconds_sum{prompt_tokens="1024"}'] == 2
    assert read['waiting_seconds_bucket{prompt_tokens="1024",le="1.0"}'] == 0
    assert read['waiting_seconds_bucket{prompt_tokens="1024",le="3.0"}'] == 1
    assert read["reordered_requests_total"] == 0
    assert read["waiting_requests"] == 1


def test_who_was_admitted_before_an_earlier_one_counts_as_reordered() -> None:
    metrics = PluginMetrics(speed=1)
    first = request("a", tokens=9, arrival=0, admitted=1)
    waits = request("b", tokens=900, arrival=1, admitted=None)
    overtakes = request("c", tokens=9, arrival=2, admitted=3)
    everyone = [first, waits, overtakes]
    for one, reordered in ((first, 0), (overtakes, 1)):
        metrics.first_token(one, requests=everyone)
        assert samples(metrics)["reordered_requests_total"] == reordered
    waits.admitted_at = 4
    metrics.first_token(waits, requests=everyone)
    assert samples(metrics)["reordered_requests_total"] == 1
