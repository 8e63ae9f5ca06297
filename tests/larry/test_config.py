"""What the plugin can be told, and on which vLLM it takes over."""

from typing import Any

import pytest

from halffull_larry.config import NEWEST_TESTED, OLDEST_TESTED, ConfigError, LarryConfig, outside_tested_range


@pytest.mark.parametrize("additional_config", [None, {}, {"other": {"alpha": -1}}, {"larry": {}}, "text"], ids=str)
def test_nothing_said_means_the_defaults(additional_config: Any) -> None:
    assert LarryConfig.of(additional_config) == LarryConfig()
    assert LarryConfig() == LarryConfig(policy="LARRY", alpha=1, load_port=9400, load_host="::", strict=False)


def test_every_setting_is_read() -> None:
    larry: dict[str, Any] = {"policy": "LARRYPlus", "alpha": 500, "load_port": None}
    larry |= {"load_host": "127.0.0.1", "strict": True}
    assert LarryConfig.of({"larry": larry}) == LarryConfig(**larry)


@pytest.mark.parametrize("policy", ["LARRY", "LARRYPlus", "FCFS"])
def test_every_policy_is_known(policy: str) -> None:
    assert LarryConfig.of({"larry": {"policy": policy}}).policy == policy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("policy", "larry"),
        ("policy", None),
        ("policy", ["LARRY"]),
        ("alpha", -0.5),
        ("alpha", float("nan")),
        ("alpha", float("inf")),
        ("alpha", "1"),
        ("alpha", True),
        ("alpha", None),
        ("load_port", 0),
        ("load_port", 65_536),
        ("load_port", 9400.0),
        ("load_port", "9400"),
        ("load_port", True),
        ("load_host", None),
        ("load_host", 1),
        ("strict", "false"),
        ("strict", 0),
    ],
)
def test_a_bad_value_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"larry\.{name} must be ") as refusal:
        LarryConfig.of({"larry": {name: value}})
    assert repr(value) in str(refusal.value)


def test_an_unknown_setting_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"larry\.alhpa is no setting; there are policy, alpha, load_port"):
        LarryConfig.of({"larry": {"alhpa": 1}})


@pytest.mark.parametrize("larry", [None, "LARRY", ["alpha"], 1], ids=str)
def test_larry_must_be_an_object(larry: Any) -> None:
    with pytest.raises(ConfigError, match='"larry" must be an object'):
        LarryConfig.of({"larry": larry})


def text(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))


@pytest.mark.parametrize("suffix", ["", ".0", ".7", ".1+cpu", ".0rc1", "rc1", ".dev12+gabc"])
@pytest.mark.parametrize("release", [OLDEST_TESTED, NEWEST_TESTED])
def test_the_tested_range_includes_both_ends(release: tuple[int, int], suffix: str) -> None:
    assert outside_tested_range(text(release) + suffix) is None


@pytest.mark.parametrize(
    "version",
    [
        f"{OLDEST_TESTED[0]}.{OLDEST_TESTED[1] - 1}.9",
        f"{NEWEST_TESTED[0]}.{NEWEST_TESTED[1] + 1}.0",
        f"{NEWEST_TESTED[0] + 1}.{OLDEST_TESTED[1]}.0",
        "0.3.2",
        "dev",
        "",
    ],
)
def test_outside_of_it_the_reason_names_release_and_range(version: str) -> None:
    reason = outside_tested_range(version)
    expected = f"vLLM {version} is outside the tested range {text(OLDEST_TESTED)} to {text(NEWEST_TESTED)}"
    assert reason == expected
