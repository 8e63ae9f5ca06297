"""`halffull probe`: what a client, and the picker, can see of an engine. Run against the emulated one and real vLLM.

It records, and judges only what the contract says (report fields, metric names); comparing two engines is for whoever
reads both files. It sends a dozen requests of its own; on an engine that serves others the counts do not add up.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
from rich.console import Console
from rich.table import Table

from halffull_lab.arguments import http_url
from halffull_lab.sse import EventParser
from halffull_lab.unanswered import unanswered

Facts = dict[str, Any]

CUMULATIVE: Final = (
    "steps",
    "busy_seconds",
    "computed_tokens",
    "first_tokens",
    "ttft_seconds",
    "prompt_tokens",
    "generation_tokens",
    "requests",
)
REPORT_FIELDS: Final = (
    "version",
    "boot_id",
    "rank",
    "scheduler",
    "age",
    "queued_tokens",
    "free_tokens",
    "total_tokens",
    "running",
    "waiting",
    "max_tokens_per_batch",
    "max_model_len",
    *CUMULATIVE,
)
METRICS: Final = (
    "vllm:num_requests_waiting",
    "vllm:num_requests_running",
    "vllm:kv_cache_usage_perc",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:inter_token_latency_seconds_sum",
    "vllm:inter_token_latency_seconds_count",
    "vllm:time_to_first_token_seconds_sum",
    "vllm:time_to_first_token_seconds_count",
    "vllm:request_prompt_tokens_sum",
    "vllm:request_prompt_tokens_count",
    "vllm:request_generation_tokens_sum",
    "vllm:request_generation_tokens_count",
    "vllm:cache_config_info",
)
"""What the picker reads of an engine without the plugin."""

TOKEN_ID: Final = 7
"""In every vocabulary, and no special token in those that are probed."""
DEADLINE: Final = 60.0
"""s for anything that should happen."""


class _Probe:
    def __init__(self, session: aiohttp.ClientSession, *, url: str, load_url: str | None) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._load_url = load_url.rstrip("/") if load_url else None
        self._model = ""
        self._longest = 2_048

    async def models(self) -> Facts:
        async with self._session.get(f"{self._url}/v1/models") as response:
            card = (await response.json())["data"][0]
        self._model = card["id"]
        self._longest = int(card.get("max_model_len") or self._longest)
        return {"model": self._model, "max_model_len": card.get("max_model_len")}

    def _body(self, *, prompt: int, output: int, **more: object) -> Facts:
        return {
            "model": self._model,
            "prompt": [TOKEN_ID] * prompt,
            "max_tokens": output,
            "ignore_eos": True,
            "temperature": 0,
            **more,
        }

    async def stream(self) -> Facts:
        body = self._body(prompt=self._longest // 4, output=32, stream=True, stream_options={"include_usage": True})
        return await self._stream("/v1/completions", body)

    async def chat_stream(self) -> Facts:
        body = self._body(prompt=1, output=8, stream=True)
        del body["prompt"]
        return await self._stream("/v1/chat/completions", body | {"messages": [{"role": "user", "content": "Hello"}]})

    async def _stream(self, path: str, body: Facts) -> Facts:
        began = time.monotonic()
        async with self._session.post(self._url + path, json=body) as response:
            facts: Facts = {"status": response.status, "content_type": response.content_type}
            facts["headers_s"] = time.monotonic() - began
            if response.status != 200:
                return facts | {"error": (await response.text())[:200]}
            parser, times, events = EventParser(), [], []
            async for data in response.content.iter_any():
                for event in parser.feed(data):
                    events.append(event)
                    times.append(time.monotonic() - began)
        parsed = [json.loads(event) for event in events if event != b"[DONE]"]
        choices = [choice for event in parsed for choice in event["choices"]]
        usages = [event["usage"] for event in parsed if event.get("usage")]
        return facts | {
            "first_event_s": times[0],
            "last_event_s": times[-1],
            "headers_before_half_of_first_event": facts["headers_s"] < times[0] / 2,
            "events_with_choices": len(choices),
            "finish_reasons": [choice["finish_reason"] for choice in choices if choice["finish_reason"]],
            "usage": {name: usages[-1][name] for name in ("prompt_tokens", "completion_tokens")} if usages else None,
            "usage_event_has_choices": bool(usages and next(e for e in parsed if e.get("usage"))["choices"]),
            "done": events[-1] == b"[DONE]",
        }

    async def whole(self) -> Facts:
        began = time.monotonic()
        body = self._body(prompt=self._longest // 4, output=32)
        async with self._session.post(f"{self._url}/v1/completions", json=body) as response:
            headers = time.monotonic() - began
            answer = await response.json()
        ended = time.monotonic() - began
        usage = answer.get("usage") or {}
        return {
            "status": response.status,
            "headers_s": headers,
            "end_s": ended,
            "headers_at_the_end": headers > 0.8 * ended,
            "finish_reason": (answer.get("choices") or [{}])[0].get("finish_reason"),
            "usage": {name: usage.get(name) for name in ("prompt_tokens", "completion_tokens")},
        }

    async def children(self) -> Facts:
        """N = 2: the report counts its prompt once."""
        before = await self._report()
        body = self._body(prompt=20, output=8, n=2, temperature=0.5)
        async with self._session.post(f"{self._url}/v1/completions", json=body) as response:
            answer = await response.json()
        facts: Facts = {"choices": len(answer.get("choices", ()))}
        if before:
            after = await self._settled(before)
            facts |= {name: after[name] - before[name] for name in ("requests", "prompt_tokens", "generation_tokens")}
        return facts

    async def disconnect(self) -> Facts:
        """A client that leaves in the middle of a stream: how long the engine goes on."""
        before = await self._running()
        body = self._body(prompt=16, output=self._longest - 100, stream=True)
        async with self._session.post(f"{self._url}/v1/completions", json=body) as response:
            await response.content.readany()
            during = await self._until(lambda running: running > before)
            response.close()
            left = time.monotonic()
        after = await self._until(lambda running: running <= before)
        return {"before": before, "during": during, "after": after, "gone_after_s": time.monotonic() - left}

    async def metrics(self) -> Facts:
        async with self._session.get(f"{self._url}/metrics") as response:
            text = await response.text()
        labels: dict[str, str] = {}
        for line in text.splitlines():
            name, brace, rest = line.partition("{")
            if brace and not line.startswith("#"):
                labels.setdefault(name, ",".join(sorted(part.split("=")[0] for part in rest.split("}")[0].split(","))))
        return {
            "bytes": len(text),
            "missing": [name for name in METRICS if name not in labels],
            "labels": sorted({labels[name] for name in METRICS[:-1] if name in labels}),
            "created_samples": any(name.endswith("_created") for name in labels),
        }

    async def report(self) -> Facts:
        before = await self._report()
        if not before:
            return {"present": False}
        body = self._body(prompt=100, output=10)
        async with self._session.post(f"{self._url}/v1/completions", json=body) as response:
            await response.read()
        after = await self._settled(before)
        deltas = {name: after[name] - before[name] for name in CUMULATIVE if name in after and name in before}
        return {
            "present": True,
            "missing": [name for name in REPORT_FIELDS if name not in after],
            "version": after.get("version"),
            "scheduler": after.get("scheduler"),
            "same_boot_id": before.get("boot_id") == after.get("boot_id"),
            "falling": [name for name, delta in deltas.items() if delta < 0],
            "of_100_in_10_out": {name: deltas.get(name) for name in CUMULATIVE if not name.endswith("seconds")},
            "idle": {name: after.get(name) for name in ("queued_tokens", "running", "waiting")},
        }

    async def keep_alive(self) -> Facts:
        """How long the server leaves an idle connection open."""
        parts = urlsplit(self._url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            writer.write(f"GET /health HTTP/1.1\r\nhost: {parts.netloc}\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            answered = time.monotonic()
            try:
                async with asyncio.timeout(DEADLINE):
                    while await reader.read(1024):
                        pass
            except TimeoutError:
                return {"closed_after_s": None}
            return {"closed_after_s": time.monotonic() - answered}
        finally:
            writer.close()

    async def errors(self) -> Facts:
        cases: Mapping[str, tuple[str, bytes]] = {
            "not JSON": ("/v1/completions", b"{"),
            "no prompt": ("/v1/completions", self._json(prompt=None)),
            "unknown model": ("/v1/completions", self._json(model="nobody/nothing")),
            "max_tokens 0": ("/v1/completions", self._json(max_tokens=0)),
            "prompt too long": ("/v1/completions", self._json(prompt=[TOKEN_ID] * (self._longest + 1))),
            "output too long": ("/v1/completions", self._json(max_tokens=self._longest + 1)),
            "messages missing": ("/v1/chat/completions", json.dumps({"model": self._model}).encode()),
            "unknown path": ("/v1/nowhere", b"{}"),
        }
        facts: Facts = {}
        for name, (path, body) in cases.items():
            # Some servers drop a connection on which they refused something, just when it is used again.
            headers = {"content-type": "application/json", "connection": "close"}
            async with self._session.post(self._url + path, data=body, headers=headers) as response:
                facts[name] = {"status": response.status, "openai_error": _is_openai_error(await response.read())}
        async with self._session.get(f"{self._url}/v1/completions") as response:
            facts["wrong method"] = {"status": response.status, "openai_error": _is_openai_error(await response.read())}
        return facts

    def _json(self, **changes: object) -> bytes:
        return json.dumps(self._body(prompt=4, output=4) | changes).encode()

    async def _report(self) -> Facts:
        if self._load_url is None:
            return {}
        url = self._load_url if self._load_url.endswith("/load") else f"{self._load_url}/load"
        async with self._session.get(url) as response:
            report: Facts = await response.json()
            return report

    async def _settled(self, before: Facts) -> Facts:
        """The report once a request more has finished."""
        deadline = time.monotonic() + 5.0
        report = await self._report()
        while report["requests"] <= before["requests"] and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
            report = await self._report()
        return report

    async def _running(self) -> int:
        if report := await self._report():
            return int(report["running"])
        async with self._session.get(f"{self._url}/metrics") as response:
            text = await response.text()
        lines = (line for line in text.splitlines() if line.startswith("vllm:num_requests_running{"))
        return int(sum(float(line.rpartition(" ")[2]) for line in lines))

    async def _until(self, condition: Callable[[int], bool]) -> int:
        deadline = time.monotonic() + DEADLINE
        # Polling is all that an outsider can do.
        while not condition(running := await self._running()) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return running


def _is_openai_error(body: bytes) -> bool:
    try:
        error = json.loads(body)["error"]
        return isinstance(error["message"], str) and "type" in error and "code" in error
    except (ValueError, TypeError, KeyError):
        return False


async def probe(url: str, *, load_url: str | None) -> dict[str, Facts]:
    """All facts by section. A section that broke says how, under `broke`.

    Raises:
        aiohttp.ClientError: the server does not answer /v1/models.
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=DEADLINE, sock_read=DEADLINE)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        it = _Probe(session, url=url, load_url=load_url)
        facts = {"models": await it.models()}
        sections: tuple[Callable[[], Awaitable[Facts]], ...] = (
            it.stream,
            it.chat_stream,
            it.whole,
            it.children,
            it.disconnect,
            it.metrics,
            it.report,
            it.errors,
            it.keep_alive,
        )
        for section in sections:
            name = getattr(section, "__name__", "")
            try:
                facts[name] = await section()
            except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError) as error:
                facts[name] = {"broke": f"{type(error).__name__}: {error}"}
    return facts


def table(facts: Mapping[str, Facts]) -> Table:
    """The facts, for people."""
    made = Table("section", "fact", "value", title="What can be seen of the engine")
    for section, values in facts.items():
        for name, value in values.items():
            made.add_row(section, name, f"{value:.4f}" if isinstance(value, float) else json.dumps(value))
        made.add_section()
    return made


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `halffull probe`."""
    parser.add_argument("url", metavar="URL", type=http_url, help="of the OpenAI API, without /v1")
    parser.add_argument(
        "--load-url", metavar="URL", type=http_url, help="of the load report; none: only what every vLLM has"
    )
    parser.add_argument("--json", metavar="FILE", help="write the facts to this file, too")


def main(args: argparse.Namespace) -> int:
    """Probe one engine and print what was seen."""
    try:
        facts = asyncio.run(probe(args.url, load_url=args.load_url))
    except (aiohttp.ClientConnectionError, OSError) as error:
        sys.stderr.write(f"halffull probe: {unanswered(args.url, error)}\n")
        return 1
    except (aiohttp.ClientError, LookupError) as error:
        sys.stderr.write(f"halffull probe: {args.url} lists no model: {error}\n")
        return 1
    Console().print(table(facts))
    if args.json:
        Path(args.json).write_text(json.dumps(facts, indent=2) + "\n")
    return 0
