"""What the plugin can be told, and on which vLLM releases it takes the queue over. Pure.

vllm serve MODEL --scheduler-cls halffull_larry.Scheduler \
        --additional-config '{"larry": {"policy": "LARRY", "alpha": 1, "load_port": 9400}}'
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from halffull_larry.ordering import POLICIES

__all__ = ["NEWEST_TESTED", "OLDEST_TESTED", "ConfigError", "LarryConfig", "outside_tested_range"]

OLDEST_TESTED: Final = (0, 18)
NEWEST_TESTED: Final = (0, 32)
"""vLLM releases, both included, on which `make test-vllm` has passed. The one place that says so."""


class ConfigError(ValueError):
    """A setting that the engine must not start with; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LarryConfig:
    """The object under `larry` in vLLM's `--additional-config`."""

    policy: str = "LARRY"
    """What orders the waiting queue: `LARRY`, `LARRYPlus` or `FCFS`."""
    alpha: float = 1.0
    """LARRY's α: how many memory units × waiting requests a second of waiting outweighs. At least 0."""
    load_port: int | None = 9400
    """The load report is served on this port + data_parallel_index; None: not at all (offline use)."""
    load_host: str = "::"
    """The address it binds; `::` takes IPv4 too."""
    strict: bool = False
    """On a vLLM release outside the tested range: stop, instead of stepping aside."""

    @classmethod
    def of(cls, additional_config: object) -> Self:
        """Read vLLM's `additional_config`; no `larry` in it means the defaults.

        Raises:
            ConfigError: a setting is unknown, of the wrong type or out of its range.
        """
        given = additional_config.get("larry", {}) if isinstance(additional_config, Mapping) else {}
        if not isinstance(given, Mapping):
            raise ConfigError(f'additional-config: "larry" must be an object of settings, not {given!r}')
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise ConfigError(f"additional-config: larry.{name} is no setting; there are {', '.join(known)}")
        config = cls(**given)
        config._check()
        return config

    def _check(self) -> None:
        def refuse(name: str, allowed: str) -> ConfigError:
            return ConfigError(f"additional-config: larry.{name} must be {allowed}, not {getattr(self, name)!r}")

        if self.policy not in POLICIES:
            raise refuse("policy", f"one of {', '.join(POLICIES)}")
        if not _is_number(self.alpha) or not math.isfinite(self.alpha) or self.alpha < 0:
            raise refuse("alpha", "a finite number of at least 0")
        if self.load_port is not None and not (type(self.load_port) is int and 1 <= self.load_port <= 65_535):
            raise refuse("load_port", "a port from 1 to 65535, or null")
        if not isinstance(self.load_host, str):
            raise refuse("load_host", "an address")
        if not isinstance(self.strict, bool):
            raise refuse("strict", "true or false")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def outside_tested_range(vllm_version: str) -> str | None:
    """Why the plugin must leave this vLLM's queue alone, or None when the release is within the tested range."""
    match = re.match(r"(\d+)\.(\d+)", vllm_version)
    release = (int(match[1]), int(match[2])) if match else None
    if release is not None and OLDEST_TESTED <= release <= NEWEST_TESTED:
        return None
    oldest, newest = (".".join(map(str, bound)) for bound in (OLDEST_TESTED, NEWEST_TESTED))
    return f"vLLM {vllm_version} is outside the tested range {oldest} to {newest}"
