"""Profiles by their name or from a file: what `--gpu` and `--profile` take, and what `halffull calibrate` writes."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from halffull_lab.engine_requests import EngineLimits
from halffull_lab.latency import PROFILES, LatencyModel, Profile

_Cost = Annotated[float, msgspec.Meta(ge=0, lt=1e9)]
_Count = Annotated[int, msgspec.Meta(ge=1, lt=2**40)]


NAMES: Final = ", ".join(sorted(PROFILES))
"""Of the built-in profiles, for people."""


class ProfileError(ValueError):
    """No such profile, or its file says what makes no sense; names the file and the key."""


class _Latency(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`LatencyModel`, ms; nothing has a default, so that a file says all that it means."""

    floor: _Cost
    base: _Cost
    matmul_per_token: _Cost
    fixed: _Cost
    per_token: _Cost
    per_decode: _Cost
    per_kv_token: _Cost
    per_prefill_pair: _Cost
    host: _Cost


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`Profile`, and how it came about."""

    latency: _Latency
    kv_tokens: _Count
    max_tokens_per_batch: _Count
    block_size: _Count
    max_num_seqs: _Count
    max_model_len: _Count
    calibration: dict[str, Any] = {}


def load_profile(name_or_path: str | Path) -> Profile:
    """A profile of `latency.PROFILES` by its name, else that of a file: JSON if its name ends so, TOML otherwise.

    `70b-2xh100:8192` is the profile of that name with a step budget (`--max-num-batched-tokens`) of 8,192 tokens.

    Raises:
        ProfileError: it is neither, or the file is not readable, misses a key, or has one of the wrong type or value.
    """
    if isinstance(name_or_path, str):
        name, colon, budget = name_or_path.partition(":")
        if name in PROFILES:
            return _with_budget(PROFILES[name], budget, name_or_path) if colon else PROFILES[name]
    path = Path(name_or_path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ProfileError(f"{path}: neither a file nor one of {NAMES}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: {error}") from None
    try:
        raw = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        file = msgspec.convert(raw, _File)
        profile = Profile(
            latency=LatencyModel(**msgspec.structs.asdict(file.latency)),
            kv_tokens=file.kv_tokens,
            max_tokens_per_batch=file.max_tokens_per_batch,
            block_size=file.block_size,
            max_num_seqs=file.max_num_seqs,
            max_model_len=file.max_model_len,
        )
        if profile.kv_tokens < profile.block_size:
            raise ProfileError(f"kv_tokens: {profile.kv_tokens} is less than a block of {profile.block_size}")
        EngineLimits.of(profile)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        key = where.strip("`.")
        raise ProfileError(f"{path}: {f'{key}: ' if key else ''}{what}") from None
    except ValueError as error:
        raise ProfileError(f"{path}: {error}") from None
    return profile


def _with_budget(profile: Profile, budget: str, given: str) -> Profile:
    try:
        changed = replace(profile, max_tokens_per_batch=int(budget))
        EngineLimits.of(changed)
    except ValueError as error:
        raise ProfileError(f"{given}: after the colon stands the step budget in tokens: {error}") from None
    return changed


def render_profile(profile: Profile, *, calibration: Mapping[str, Any], suffix: str) -> str:
    """The text of a file that `load_profile` reads.

    Args:
        profile: what it holds.
        calibration: how it came about, nested; TOML leaves its lists out.
        suffix: `.json`, or anything else for TOML.
    """
    limits = asdict(profile)
    latency = limits.pop("latency")
    content = {**limits, "latency": latency, "calibration": dict(calibration)}
    if suffix == ".json":
        return json.dumps(content, indent=1, allow_nan=False) + "\n"
    return "\n".join(_toml(content, ())).lstrip() + "\n"


def _toml(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = ["", f"[{'.'.join(path)}]"] if path else []
    for key, value in table.items():
        if isinstance(value, float):
            lines.append(f"{key} = {float(f'{value:.6g}')!r}")
        elif isinstance(value, bool | int | str):
            lines.append(f"{key} = {json.dumps(value)}")
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += _toml(value, (*path, key))
    return lines
