"""The text at /metrics, read back with Prometheus' own parser."""

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from halffull_larry.accounts import BANDS, WAITING_SECONDS, Accounts
from halffull_larry.metrics import exposition
from halffull_larry.report import Identity
from halffull_larry.snapshot import Snapshot


@dataclass
class Admitted:
    request_id: str
    num_prompt_tokens: int
    arrival_time: float = 0.0
    num_output_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens


def read(accounts: Accounts, *, scheduler: str = "LARRY", version: str = "0.32.0") -> dict[tuple[str, ...], float]:
    identity = Identity(scheduler=scheduler, max_tokens_per_batch=1, max_model_len=1)
    text = exposition(identity, Snapshot(queued_tokens=7, running=3, waiting=2), accounts, vllm_version=version)
    samples = {}
    for family in text_string_to_metric_families(text.decode()):
        assert family.documentation
        assert family.type in ("gauge", "counter", "histogram")
        for sample in family.samples:
            key = (sample.name.removeprefix("halffull_larry_"), *sample.labels.values())
            assert key not in samples
            samples[key] = sample.value
    return samples


def test_gauges_and_counters() -> None:
    accounts = Accounts()
    accounts.reordered, accounts.unservable = 11, 5
    samples = read(accounts)
    assert samples["info", "LARRY", "0.32.0"] == 1
    assert samples["active",] == 1
    assert samples["queued_tokens",] == 7
    assert samples["running_requests",] == 3
    assert samples["waiting_requests",] == 2
    assert samples["reordered_requests_total",] == 11
    assert samples["unservable_requests_total",] == 5


def test_when_it_stepped_aside_the_reason_is_a_label() -> None:
    reason = 'Stock: vLLM "x\\y"\nis unknown'
    samples = read(Accounts(), scheduler=reason)
    assert samples["active",] == 0
    assert samples["info", reason, "0.32.0"] == 1


def test_the_histogram_is_cumulative_in_each_band() -> None:
    accounts = Accounts()
    for number, (prompt, wait) in enumerate([(10, 0.005), (10, 0.02), (10, 400.0), (99_999, 2.0)]):
        accounts.admitted(Admitted(f"r{number}", prompt), now=wait)
    samples = read(accounts)
    small, large = str(BANDS[0]), "+Inf"

    def buckets(band: str) -> list[float]:
        return [samples["waiting_seconds_bucket", band, str(le)] for le in (*WAITING_SECONDS, "+Inf")]

    assert buckets(small) == [1, *[2] * (len(WAITING_SECONDS) - 1), 3]
    assert buckets(large) == [*[0] * 5, *[1] * (len(WAITING_SECONDS) - 4)]
    assert samples["waiting_seconds_count", small] == 3
    assert abs(samples["waiting_seconds_sum", small] - 400.025) < 1e-6
    assert samples["waiting_seconds_count", str(BANDS[1])] == 0
