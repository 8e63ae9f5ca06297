"""Arrivals, prompt lengths and output lengths of recorded traffic, from the public formats.

Recognised by content, not by the file's name:

- Azure LLM inference CSV: ``TIMESTAMP,ContextTokens,GeneratedTokens`` (dates or seconds)
- BurstGPT CSV: ``Timestamp,Model,Request tokens,Response tokens,…`` (seconds)
- plain CSV of one's own: ``arrival,prompt_tokens,output_tokens`` (seconds)
- Mooncake JSONL: ``{"timestamp": ms, "input_length": …, "output_length": …}`` per line
- a description of synthetic traffic, by its name's end: ``*.toml``, see `halffull_lab.synthetic`

gzip, a byte-order mark, CRLF and unsorted times are fine. A row that cannot be replayed (zero tokens: BurstGPT marks
failed requests so) is left out and named in the trace's notes; one that cannot be read is an error with its line.
"""

import csv
import gzip
import io
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from halffull_lab.synthetic import parse_synthetic

SYNTHETIC = ("sharegpt", "openchat", "summaries", "agents", "reasoning", "mixed", "day", "shift")
BUNDLED = {
    "azure-conv": "AzureLLMInferenceTrace_conv.csv.gz",
    "azure-code": "AzureLLMInferenceTrace_code.csv.gz",
    **{f"{name}-like": f"{name}-like.toml" for name in SYNTHETIC},
}
_T = TypeVar("_T")
_NAMED_ROWS = 3  # left-out rows that a note names one by one


MOST_TOKENS = 10_000_000
"""A longer prompt or output is a mistake in the trace, and would fill the client's memory."""


class TraceError(ValueError):
    """A trace cannot be read or used; the message names the file and, where there is one, the line."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in order of arrival.

    Attributes:
        name: where it comes from, for people.
        arrival: float64[n], seconds from the first request.
        prompt_tokens, output_tokens: int64[n], each ≥ 1.
        notes: what was changed on reading, for people.
    """

    name: str
    arrival: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def duration(self) -> float:
        """Seconds from the first arrival to the last."""
        return float(self.arrival[-1])

    @property
    def rate(self) -> float:
        """Mean arrivals per second; infinite when all arrive at once."""
        return (len(self) - 1) / self.duration if self.duration > 0 else math.inf

    def finite_rate(self) -> float:
        """`rate`, where there is one.

        Raises:
            TraceError: there is one request, or all arrive at once.
        """
        if not math.isfinite(self.rate):
            why = "it has one request only" if len(self) == 1 else "all requests arrive at once"
            raise TraceError(f"{self.name}: {why}, so it has no rate and none can be set")
        return self.rate

    def share(self, start: float, stop: float) -> "Trace":
        """The rows from `start` to `stop`, shares of the trace's rows between 0 and 1, counted anew from 0 s."""
        if not 0 <= start < stop <= 1:
            raise TraceError(f"{self.name}: a slice needs 0 ≤ start < stop ≤ 1, not {start:g} to {stop:g}")
        return self._rows(int(start * len(self)), int(stop * len(self)))

    def head(self, *, seconds: float) -> "Trace":
        """The requests that arrive before `seconds`."""
        return self._rows(0, int(np.searchsorted(self.arrival, seconds, side="left")))

    def at(self, *, rate: float | None = None, factor: float | None = None) -> "Trace":
        """The same requests at a mean of `rate` per second, or `factor` times as fast; at most one of the two."""
        if rate is not None and factor is not None:
            raise TraceError("give a rate or a factor, not both")
        if rate is not None:
            factor = rate / self.finite_rate()
        if factor is None:
            return self
        if not (math.isfinite(factor) and factor > 0):
            raise TraceError("the rate or factor must be above 0")
        return replace(self, arrival=self.arrival / factor)

    def _rows(self, start: int, stop: int) -> "Trace":
        if start >= stop:
            raise TraceError(f"{self.name}: no request in this part of the trace")
        arrival = self.arrival[start:stop]
        return replace(
            self,
            arrival=arrival - arrival[0],
            prompt_tokens=self.prompt_tokens[start:stop],
            output_tokens=self.output_tokens[start:stop],
        )


def load_trace(source: str | Path) -> Trace:
    """Read a trace: one of `BUNDLED` by name, or a file.

    Raises:
        TraceError: no such file, unknown format, or a row that cannot be read.
    """
    name = str(source)
    if BUNDLED.get(name, name).endswith(".toml"):
        return _synthetic(name, _read(name))
    return parse_trace(_read(name), name=name)


def _read(name: str) -> bytes:
    try:
        if name in BUNDLED:
            return resources.files("halffull_lab").joinpath("data", BUNDLED[name]).read_bytes()
        return Path(name).read_bytes()
    except OSError as error:
        raise TraceError(f"{name}: {error.strerror or error} (or one of: {', '.join(BUNDLED)})") from error


def _synthetic(name: str, data: bytes) -> Trace:
    try:
        return _trace(name, parse_synthetic(data.decode()).rows(), [])
    except ValueError as error:  # tomllib's, msgspec's, ours, and a wrong encoding
        raise TraceError(f"{name}: {error}") from error


def parse_trace(data: bytes, *, name: str) -> Trace:
    """A trace from a file's bytes; see the module for formats, and `load_trace` for errors."""
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError) as error:
            raise TraceError(f"{name}: broken gzip: {error}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(f"{name}: not UTF-8: {error}") from error
    rows: list[tuple[float, int, int]] = []
    left_out: list[str] = []
    lines = _json_rows(text, name) if text.lstrip()[:1] == "{" else _csv_rows(text, name)
    for line, arrival, prompt, output in lines:
        if prompt == 0 or output == 0:
            left_out.append(f"line {line}: {'no prompt' if prompt == 0 else 'no output'} tokens")
        else:
            rows.append((arrival, prompt, output))
    if not rows:
        raise TraceError(f"{name}: no request in it" + (f" that can be replayed ({left_out[0]})" if left_out else ""))
    return _trace(name, rows, left_out)


def _trace(name: str, rows: list[tuple[float, int, int]], left_out: list[str]) -> Trace:
    arrival = np.array([row[0] for row in rows], dtype=np.float64)
    prompt = np.array([row[1] for row in rows], dtype=np.int64)
    output = np.array([row[2] for row in rows], dtype=np.int64)
    notes = []
    if left_out:
        more = f" and {len(left_out) - _NAMED_ROWS} more" if len(left_out) > _NAMED_ROWS else ""
        notes.append(f"{len(left_out)} rows left out: {'; '.join(left_out[:_NAMED_ROWS])}{more}")
    backwards = int(np.count_nonzero(np.diff(arrival) < 0))
    if backwards:
        order = np.argsort(arrival, kind="stable")
        arrival, prompt, output = arrival[order], prompt[order], output[order]
        notes.append(f"sorted by time: {backwards} rows were earlier than the row before")
    return Trace(name, arrival - arrival[0], prompt, output, tuple(notes))


def _json_rows(text: str, name: str) -> Iterator[tuple[int, float, int, int]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                row = json.loads(line)
                yield (
                    number,
                    _value("timestamp", _seconds, row["timestamp"]) / 1000,
                    _value("input_length", _tokens, row["input_length"]),
                    _value("output_length", _tokens, row["output_length"]),
                )
            except KeyError as error:
                raise TraceError(f"{name}: line {number}: {error.args[0]} is missing") from error
            except (ValueError, TypeError) as error:
                raise TraceError(f"{name}: line {number}: {error}") from error


def _csv_rows(text: str, name: str) -> Iterator[tuple[int, float, int, int]]:
    reader = csv.reader(io.StringIO(text, newline=""))
    header = [column.strip() for column in next(reader, [])]
    places, read = _columns([column.lower() for column in header], name)
    columns = [header[place] for place in places]
    for row in reader:
        if not any(row):
            continue
        try:
            arrival, prompt, output = (row[place] for place in places)
            yield (
                reader.line_num,
                _value(columns[0], read, arrival),
                _value(columns[1], _tokens, prompt),
                _value(columns[2], _tokens, output),
            )
        except IndexError as error:
            raise TraceError(f"{name}: line {reader.line_num}: {len(row)} of {len(header)} columns") from error
        except ValueError as error:
            raise TraceError(f"{name}: line {reader.line_num}: {error}") from error


def _value(column: str, read: Callable[[Any], _T], value: Any) -> _T:
    try:
        return read(value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{column}: {error}") from error


def _seconds(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"time {value!r} is not finite")
    return number


def _moment(value: str) -> float:
    try:
        return _seconds(value)
    except ValueError:
        moment = datetime.fromisoformat(value.strip())
        return (
            moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        ).timestamp()  # local time may jump, UTC does not


def _tokens(value: Any) -> int:
    number = float(value)
    if not number.is_integer() or not 0 <= number <= MOST_TOKENS:
        raise ValueError(f"{value!r} is not a number of tokens up to {MOST_TOKENS:,}")
    return int(number)


# Columns of arrival, prompt and output (names in lower case), and how to read the arrival.
_FORMATS: tuple[tuple[tuple[str, str, str], Callable[[Any], float]], ...] = (
    (("arrival", "prompt_tokens", "output_tokens"), _seconds),
    (("timestamp", "contexttokens", "generatedtokens"), _moment),
    (("timestamp", "request tokens", "response tokens"), _seconds),
)


def _columns(header: list[str], name: str) -> tuple[list[int], Callable[[Any], float]]:
    for columns, read in _FORMATS:
        if set(columns) <= set(header):
            return [header.index(column) for column in columns], read
    known = "; ".join(",".join(columns) for columns, _ in _FORMATS)
    raise TraceError(f"{name}: line 1: unknown columns {','.join(header)!r}; known are {known}, and Mooncake's JSONL")
