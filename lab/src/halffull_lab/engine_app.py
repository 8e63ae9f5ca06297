"""The emulated engine as an ASGI application: OpenAI's API, /health, /metrics, and faults to inject in tests.

A stream's headers go out at once and its first token when the engine has it; an answer that is not a stream sends its
headers at the end, as vLLM does.
"""

import asyncio
import itertools
import json
import secrets
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, Final

from halffull_lab.engine import Engine
from halffull_lab.engine_loop import EngineLoop
from halffull_lab.engine_metrics import CONTENT_TYPE, TTFT_SECONDS, exposition
from halffull_lab.engine_plugin_metrics import PluginMetrics
from halffull_lab.engine_requests import EngineLimits, Output, Prompt, PromptRefusedError, Request
from halffull_lab.openai_api import Answer, ApiError, Generation, parse_generation, parse_json, text_tokens
from halffull_lab.profiles import load_profile
from halffull_larry.ordering import make_ordering
from halffull_larry.report import Identity, render
from halffull_larry.snapshot import Snapshot

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_BODY_BYTES: Final = 64 * 2**20
FAULTS: Final = ("none", "fail", "wedge", "hang_load", "slow")

_JSON: Final = b"application/json"
_EVENTS: Final = [(b"content-type", b"text/event-stream; charset=utf-8")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How an emulated engine is set up."""

    profile: str = "70b-2xh100"
    """A built-in one's name, or a file's path."""
    policy: str = "FCFS"
    alpha: float = 1.0
    model: str = "emulated"
    speed: float = 1.0
    stream_interval: int = 1
    """A stream gets its first token at once, then every so many, and the last at the finish."""
    allow_faults: bool = False
    limits: EngineLimits | None = None
    """Other than the profile's."""


class _Call:
    """One HTTP request in the engine: what its sequences have produced and its handler has not sent yet."""

    __slots__ = ("_buffer", "_sent", "_waiter", "answer", "error", "identity", "stream", "unfinished")

    def __init__(self, answer: Answer, *, stream: bool, sequences: int) -> None:
        self.answer = answer
        self.identity = answer.identity
        self.stream = stream
        self.unfinished = sequences
        self.error: ApiError | None = None
        self._sent = [0] * sequences if stream else []
        self._buffer: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None

    def take(self, index: int, generated: int, *, finished: bool) -> None:
        """News of a sequence."""
        self.unfinished -= finished
        if self.stream:
            sent = self._sent[index]
            self._sent[index] = generated
            self._buffer.append(self.answer.event(index, generated - sent, first=not sent, finished=finished))
            self._wake()
        elif not self.unfinished:
            self._wake()

    def fail(self, error: ApiError) -> None:
        """Nothing more will come."""
        self.error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> bytes:
        """What is new; b"" when nothing more will come."""
        if not self._buffer and self.unfinished and self.error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        data = b"".join(self._buffer)
        self._buffer.clear()
        return data


class EngineApp:
    """The ASGI application. Create it, and serve it, inside a running event loop."""

    def __init__(self, options: ServerOptions) -> None:
        profile = load_profile(options.profile)
        limits = options.limits or EngineLimits.of(profile)
        ordering = make_ordering(options.policy, alpha=options.alpha)
        self.options = options
        self.engine = Engine(latency=profile.latency, limits=limits, ordering=ordering)
        self.loop = EngineLoop(self.engine, speed=options.speed, deliver=self._deliver)
        self.identity = Identity(
            scheduler=ordering.name,
            max_tokens_per_batch=limits.max_tokens_per_batch,
            max_model_len=limits.max_model_len,
        )
        self._plugin = PluginMetrics(speed=options.speed)
        self._ttft = [0] * (len(TTFT_SECONDS) + 1)
        self._started = time.time()
        self._calls: dict[str, tuple[_Call, int]] = {}  # by sequence id
        self._numbers = itertools.count()
        self._prefix = secrets.token_hex(4)
        self._failing = False
        self._load_hangs = False
        self._watchers: set[asyncio.Task[None]] = set()
        self._routes = {
            "/v1/completions": ("POST", self._completions),
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/models": ("GET", self._models),
            "/health": ("GET", self._health),
            "/metrics": ("GET", self._metrics),
            "/tokenize": ("POST", self._tokenize),
        }
        if options.allow_faults:
            self._routes["/fault"] = ("POST", self._fault)

    def load_report(self) -> bytes | None:
        """The body of `GET /load`; any thread may ask. None under the fault `hang_load`."""
        if self._load_hangs:
            return None
        return render(self.identity, self._snapshot(), now=self.loop.now() / self.options.speed)

    def plugin_metrics(self) -> bytes:
        """The body of `GET /metrics` beside the load report; any thread may ask."""
        return self._plugin.text(self.identity, self._snapshot())

    def _snapshot(self) -> Snapshot:
        """The engine's load in the seconds of whoever polls: to them it is a GPU that is `speed` times faster."""
        snapshot, speed = self.engine.snapshot, self.options.speed
        return snapshot._replace(
            taken=snapshot.taken / speed,
            busy_seconds=snapshot.busy_seconds / speed,
            ttft_seconds=snapshot.ttft_seconds / speed,
        )

    async def idle(self) -> None:
        """Wait until no answer is under way."""
        while self._calls:  # noqa: ASYNC110  once in an engine's life: requests pay nothing for it
            await asyncio.sleep(0.05)

    def close(self) -> None:
        """End every answer that is under way."""
        self.loop.close()
        for call, _ in self._calls.values():
            call.fail(ApiError("The engine is shutting down.", status=503, kind="ServiceUnavailableError"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request."""
        if scope["type"] != "http":
            return
        try:
            await self._route(scope["method"], scope["path"], receive, send)
        except ApiError as error:
            await _respond(send, error.status, error.body())

    async def _route(self, method: str, path: str, receive: Receive, send: Send) -> None:
        route = self._routes.get(path)
        # vLLM leaves these two to its web framework, whose answers are no OpenAI errors.
        if route is None:
            await _respond(send, 404, b'{"detail":"Not Found"}')
        elif method != route[0]:
            await _respond(send, 405, b'{"detail":"Method Not Allowed"}')
        else:
            await route[1](receive, send)

    async def _completions(self, receive: Receive, send: Send) -> None:
        await self._generate(receive, send, chat=False)

    async def _chat(self, receive: Receive, send: Send) -> None:
        await self._generate(receive, send, chat=True)

    async def _health(self, _: Receive, send: Send) -> None:
        await _respond(send, 200, b"")

    # Generation

    async def _generate(self, receive: Receive, send: Send, *, chat: bool) -> None:
        if self._failing:
            raise ApiError("Injected fault.", status=500, kind="InternalServerError")
        body = await _read(receive)
        options, limits = self.options, self.engine.limits
        generation = parse_generation(body, chat=chat, model=options.model, max_model_len=limits.max_model_len)
        for tokens in generation.prompts:
            try:
                self.engine.check(prompt_tokens=tokens, output_tokens=generation.output_tokens)
            except PromptRefusedError as error:
                raise ApiError(str(error)) from None
        call, sequence_ids = self._submit(generation)
        watcher = asyncio.get_running_loop().create_task(self._abort_on_disconnect(receive, sequence_ids, call))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        try:
            if generation.stream:
                await _stream(send, call)
            else:
                await call.next()
                if call.error:
                    raise call.error
                await _respond(send, 200, call.answer.whole())
        finally:
            self._abort(sequence_ids)

    def _submit(self, generation: Generation) -> tuple[_Call, list[str]]:
        number = next(self._numbers)
        identity = f"{'chatcmpl' if generation.chat else 'cmpl'}-{self._prefix}{number:08x}"
        answer = Answer(generation, identity=identity, model=self.options.model, created=int(time.time()))
        sequences = len(generation.prompts) * generation.n
        call = _Call(answer, stream=generation.stream, sequences=sequences)
        at = self.loop.now()
        sequence_ids: list[str] = []
        for tokens in generation.prompts:
            prompt = Prompt(tokens, generation.n)
            for _ in range(generation.n):
                index = len(sequence_ids)
                sequence_id = f"{index}_{identity}"
                sequence_ids.append(sequence_id)
                self._calls[sequence_id] = (call, index)
                self.loop.submit(
                    sequence_id,
                    at=at,
                    prompt=prompt,
                    output_tokens=generation.output_tokens,
                    priority=generation.priority,
                    interval=self.options.stream_interval if generation.stream else 0,
                )
        return call, sequence_ids

    def _deliver(self, outputs: list[Output]) -> None:
        for request, generated, finished in outputs:
            if generated == 1:
                self._first_token(request)
            entry = self._calls.pop(request.request_id, None) if finished else self._calls.get(request.request_id)
            if entry is not None:  # else its client is gone
                entry[0].take(entry[1], generated, finished=finished)

    def _first_token(self, request: Request) -> None:
        assert request.first_token_at is not None  # noqa: S101  it is why this is called
        self._ttft[bisect_left(TTFT_SECONDS, (request.first_token_at - request.arrival) / self.options.speed)] += 1
        self._plugin.first_token(request, requests=self.engine.requests.values())

    async def _abort_on_disconnect(self, receive: Receive, sequence_ids: list[str], call: _Call) -> None:
        """Ends by itself with the response: uvicorn reports a disconnect then, too."""
        while (await receive())["type"] != "http.disconnect":
            pass
        if self._abort(sequence_ids):
            call.fail(ApiError("The client is gone.", status=499))

    def _abort(self, sequence_ids: list[str]) -> bool:
        """Take what has not finished out of the engine; whether there was anything."""
        aborted = False
        for sequence_id in sequence_ids:
            if self._calls.pop(sequence_id, None) is not None:
                self.loop.abort(sequence_id)
                aborted = True
        return aborted

    # The rest

    async def _models(self, _: Receive, send: Send) -> None:
        card = {
            "id": self.options.model,
            "object": "model",
            "created": int(self._started),
            "owned_by": "halffull",
            "root": self.options.model,
            "parent": None,
            "max_model_len": self.engine.limits.max_model_len,
        }
        await _respond(send, 200, json.dumps({"object": "list", "data": [card]}).encode())

    async def _metrics(self, _: Receive, send: Send) -> None:
        totals, speed = self.engine.totals, self.options.speed
        text = exposition(
            model=self.options.model,
            limits=self.engine.limits,
            snapshot=self._snapshot(),
            totals=replace(totals, itl_seconds=totals.itl_seconds / speed, e2e_seconds=totals.e2e_seconds / speed),
            started=self._started,
            late=(self.loop.late_max, self.loop.late_total),
            ttft=self._ttft,
        )
        await _respond(send, 200, text.encode(), content_type=CONTENT_TYPE.encode())

    async def _tokenize(self, receive: Receive, send: Send) -> None:
        prompt = parse_json(await _read(receive)).get("prompt")
        if not isinstance(prompt, str):
            raise ApiError("`prompt` must be a string.", param="prompt")
        count = text_tokens(prompt)
        tokens = {"count": count, "max_model_len": self.engine.limits.max_model_len, "tokens": list(range(count))}
        await _respond(send, 200, json.dumps(tokens).encode())

    async def _fault(self, receive: Receive, send: Send) -> None:
        fields = parse_json(await _read(receive))
        kind, factor = fields.get("kind"), fields.get("factor", 2.0)
        if kind not in FAULTS:
            raise ApiError(f"`kind` must be one of {', '.join(FAULTS)}.", param="kind")
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 1e6:
            raise ApiError("`factor` must be a positive number.", param="factor")
        self._failing = kind == "fail"
        self._load_hangs = kind == "hang_load"
        self.engine.slowdown = float(factor) if kind == "slow" else 1.0
        if kind == "wedge":
            self.loop.wedge()
        else:
            self.loop.heal()
        await _respond(send, 200, b"{}")


async def _read(receive: Receive) -> bytes:
    """The request's body.

    Raises:
        ApiError: 413 when it is too large.
    """
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError("The client is gone.", status=499)
        part = message.get("body", b"")
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise ApiError(f"The body is larger than {MAX_BODY_BYTES} bytes.", status=413)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _stream(send: Send, call: _Call) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
    more = True
    while more:
        data = await call.next()
        if call.error is not None:
            data += b"data: " + call.error.body() + b"\n\ndata: [DONE]\n\n"
            more = False
        elif not call.unfinished:
            data += call.answer.end_of_stream()
            more = False
        await send({"type": "http.response.body", "body": data, "more_body": more})


async def _respond(send: Send, status: int, body: bytes, *, content_type: bytes = _JSON) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    if body:
        headers.append((b"content-type", content_type))
    if status == 413:  # the rest of the body is not wanted
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
