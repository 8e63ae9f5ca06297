"""vLLM's real scheduler under a virtual clock: no model, no GPU, no patch of vLLM.

`VLLMEngine` has the outward interface of the emulated core, `halffull_lab.engine.Engine`, so that whatever drives the
one drives the other. What is real: vLLM's `Scheduler` or `AsyncScheduler`, or the plugin's on top of them as shipped,
with vLLM's KV cache manager. What is not: the executor, which samples token 0 at the end of every prefill and of every
decode, and the time that a step takes, which is the latency model's.

It costs about 18 µs of CPU per scheduled request and step, 50 to 300 times what the emulated core costs.

With asynchronous scheduling vLLM schedules step k + 1 as soon as step k has begun, before the output of step k is
known (`EngineCore.step_with_batch_queue`). So here: `step_begin` starts the batch that was scheduled one step earlier
and schedules the next one, and a request that arrives during step k runs in step k + 2 at the earliest.

Made for vLLM 0.32; import this module, and `vllm_scheduler`, only where that is installed.
"""

from typing import Any, NamedTuple

from vllm.sampling_params import SamplingParams
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request as VLLMRequest
from vllm.v1.request import RequestStatus

from halffull_lab.engine_accounts import Accounts
from halffull_lab.engine_requests import EngineLimits, Output, Prompt, Request, StepPlan
from halffull_lab.latency import LatencyModel
from halffull_lab.vllm_policies import OracleScheduler
from halffull_lab.vllm_scheduler import STOCK, make_scheduler
from halffull_larry.snapshot import Snapshot


class _Batch(NamedTuple):
    """What one `schedule()` gave."""

    scheduled: Any  # SchedulerOutput
    sampled: ModelRunnerOutput
    prefill_tokens: int
    decodes: int
    context: int  # Σ of the decodes' computed tokens
    pairs: float  # Σ s·(p + s/2)
    admitted: int
    preempted: int


class VLLMEngine:
    """One engine. Times are seconds of the caller's clock, which must not go back; see `halffull_lab.engine.Engine`."""

    def __init__(
        self,
        *,
        latency: LatencyModel,
        limits: EngineLimits,
        policy: str = STOCK,
        alpha: float = 1.0,
        asynchronous: bool = False,
        adaptive_threshold: bool = False,
    ) -> None:
        """Set up a scheduler.

        Args:
            latency: how long a step takes.
            limits: of the engine; the KV cache has `limits.total_blocks` blocks that can be used. The threshold for
                long prefills is among them.
            policy: one of `halffull_lab.engine_policies.ENGINE_POLICIES`, or `STOCK`.
            alpha: LARRY's α.
            asynchronous: vLLM's asynchronous scheduling (its default where it serves).
            adaptive_threshold: vLLM's long_prefill_token_threshold_adaptive, which the emulated core has not.
        """
        self.latency = latency
        self.limits = limits
        self.asynchronous = asynchronous
        self.slowdown = 1.0
        """Every step takes this many times as long."""
        self._accounts = Accounts()
        self.totals = self._accounts.totals
        self.requests: dict[str, Request] = {}
        """Waiting and running."""
        self._now = 0.0
        self.scheduler = make_scheduler(
            limits, policy=policy, alpha=alpha, asynchronous=asynchronous, adaptive_threshold=adaptive_threshold
        )
        """vLLM's, or the plugin's."""
        if isinstance(self.scheduler, OracleScheduler):
            self.scheduler.known = self.requests
        if policy != STOCK:
            self.scheduler.clock = self.scheduler.timer = lambda: self._now
        self._pool = self.scheduler.kv_cache_manager.block_pool
        self._ready: _Batch | None = None  # asynchronous: scheduled, not begun
        self._flying: _Batch | None = None
        self._seconds = 0.0  # of the step in flight
        self._prefilling: set[str] = set()  # admitted, prefill not wholly scheduled
        self._aborts: list[str] = []
        self._queued = 0  # tokens
        self._steps = 0
        self.snapshot = Snapshot()
        """The load report's part that changes, from this module's own sums."""
        self._publish()

    # What the caller does.

    def check(self, *, prompt_tokens: int, output_tokens: int) -> None:
        """Refuse what could never run; a real server does so before its scheduler sees the request.

        Raises:
            PromptRefusedError: empty, longer than a sequence may be, or larger than the whole KV cache.
        """
        self.limits.check(prompt_tokens=prompt_tokens, output_tokens=output_tokens)

    def add(
        self,
        request_id: str,
        *,
        prompt: Prompt,
        output_tokens: int,
        arrival: float,
        priority: int = 0,
        interval: int = 0,
        max_tokens: int | None = None,
    ) -> Request:
        """Enqueue a sequence that will produce exactly `output_tokens`; for the arguments see `Engine.add`.

        Raises:
            PromptRefusedError: it could never run.
            ValueError: the id is in use, or max_tokens below output_tokens.
        """
        self.check(prompt_tokens=prompt.tokens, output_tokens=max_tokens or output_tokens)
        if request_id in self.requests:
            raise ValueError(f"request {request_id!r} is in the engine already")
        request = Request(
            request_id,
            prompt=prompt,
            output_tokens=output_tokens,
            arrival=arrival,
            priority=priority,
            interval=interval,
            max_tokens=max_tokens,
        )
        self.requests[request_id] = request
        self._queued += prompt.tokens
        self._now = max(self._now, arrival)
        self.scheduler.add_request(
            VLLMRequest(
                request_id,
                prompt_token_ids=[0] * prompt.tokens,
                sampling_params=SamplingParams(max_tokens=output_tokens, ignore_eos=True, temperature=0.0),
                pooling_params=None,
                arrival_time=arrival,
                priority=priority,
            )
        )
        return request

    def abort(self, request_id: str, now: float) -> None:
        """Forget a sequence; at the end of the step in flight, if there is one. Unknown ids are ignored."""
        self._now = now
        if self._flying is not None:
            self._aborts.append(request_id)
        elif self._abort(request_id):
            self._publish()

    def generated(self, request: Request) -> int:
        """Output tokens that a request has produced by the end of the last step."""
        return request.generated

    def step_begin(self, now: float) -> StepPlan | None:
        """Begin a step at `now`; None when there is nothing to run.

        A batch scheduled ahead of which no request is left (all aborted) takes no time.

        Raises:
            RuntimeError: a step is in flight.
        """
        if self._flying is not None:
            raise RuntimeError("a step is in flight")
        self._now = now
        batch, self._ready = self._ready, None
        if batch is not None and not any(name in self.requests for name in batch.scheduled.num_scheduled_tokens):
            self.scheduler.update_from_output(batch.scheduled, batch.sampled)
            batch = None
        if batch is None:
            batch = self._schedule()
            if batch is None:
                return None
            if not batch.scheduled.num_scheduled_tokens:
                self.scheduler.update_from_output(batch.scheduled, batch.sampled)
                return None
        if self.asynchronous:
            self._ready = self._schedule()
        seconds = self.latency.step_seconds(
            prefill_tokens=batch.prefill_tokens,
            decodes=batch.decodes,
            decode_context=batch.context,
            prefill_pairs=batch.pairs,
        )
        self._flying = batch
        self._seconds = seconds * self.slowdown
        self._publish()
        return StepPlan(self._seconds, batch.prefill_tokens, batch.decodes, batch.admitted, batch.preempted)

    def step_end(self, now: float) -> list[Output]:
        """The step in flight is over at `now`: tokens come out, finished sequences leave, aborts are applied.

        Raises:
            RuntimeError: no step is in flight.
        """
        batch = self._flying
        if batch is None:
            raise RuntimeError("no step is in flight")
        self._now = now
        self._flying = None
        self._steps += 1
        self._accounts.busy_seconds += self._seconds
        self._accounts.computed_tokens += batch.prefill_tokens + batch.decodes
        outputs: list[Output] = []
        for of_client in self.scheduler.update_from_output(batch.scheduled, batch.sampled).values():
            for output in of_client.outputs:
                request = self.requests[output.request_id]
                self._accounts.token(request, now)
                generated = request.generated
                finished = output.finish_reason is not None
                if finished:
                    self._forget(request)
                    self._accounts.finished(request, now)
                interval = request.interval
                if finished or generated == 1 or (interval and (generated - 1) % interval == 0):
                    outputs.append(Output(request, generated, finished))
        for request_id in self._aborts:
            self._abort(request_id)
        self._aborts.clear()
        self._publish()
        return outputs

    # Within.

    def _schedule(self) -> _Batch | None:
        """Ask vLLM for a batch, and prepare what its executor will answer."""
        scheduler = self.scheduler
        if not scheduler.has_requests():
            return None
        scheduled = scheduler.schedule()
        sequences: dict[str, VLLMRequest] = scheduler.requests
        preempted = scheduled.preempted_req_ids or ()
        for request_id in preempted:
            if request_id in self.requests:
                self._prefilling.discard(request_id)
                self._requeue(self.requests[request_id], sequences[request_id].num_tokens)
        admitted = {one.req_id for one in scheduled.scheduled_new_reqs}
        admitted |= scheduled.scheduled_cached_reqs.resumed_req_ids
        for request_id in admitted:
            self._requeue(self.requests[request_id], sequences[request_id].num_tokens)
        tokens: dict[str, int] = scheduled.num_scheduled_tokens
        prefilling = self._prefilling | admitted
        prefill = context = decodes = 0
        pairs = 0.0
        sampled: list[list[int]] = []
        for request_id, count in tokens.items():
            sequence = sequences[request_id]
            unfinished = sequence.is_prefill_chunk
            sampled.append([] if unfinished else [0])
            if request_id not in prefilling:
                decodes += 1
                context += sequence.num_computed_tokens - 1
                continue
            start = sequence.num_computed_tokens - count
            prefill += count
            pairs += count * (start + count / 2)
            request = self.requests[request_id]
            self._queued -= request.prefill_tokens - request.prefill_done
            request.prefill_done = sequence.num_computed_tokens
            self._queued += request.prefill_tokens - request.prefill_done
            if unfinished:
                self._prefilling.add(request_id)
            else:
                self._prefilling.discard(request_id)
        self.totals.preemptions += len(preempted)
        return _Batch(
            scheduled,
            ModelRunnerOutput(
                req_ids=list(tokens),
                req_id_to_index={request_id: index for index, request_id in enumerate(tokens)},
                sampled_token_ids=sampled,
            ),
            prefill,
            decodes,
            context,
            pairs,
            len(admitted),
            len(preempted),
        )

    def _requeue(self, request: Request, tokens: int) -> None:
        """All of its `tokens` are to be computed: preempted, or about to run (again)."""
        self._queued += tokens - (request.prefill_tokens - request.prefill_done)
        request.prefill_tokens = tokens
        request.prefill_done = 0

    def _abort(self, request_id: str) -> bool:
        request = self.requests.get(request_id)
        if request is None:
            return False
        self._forget(request)
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        self.totals.aborted += 1
        return True

    def _forget(self, request: Request) -> None:
        del self.requests[request.request_id]
        self._prefilling.discard(request.request_id)
        # 0 while it decodes; not when aborted, or when its last token came out after it had been preempted.
        self._queued -= request.prefill_tokens - request.prefill_done

    def _publish(self) -> None:
        limits = self.limits
        running = len(self.scheduler.running)
        self.snapshot = self._accounts.snapshot(
            self._now,
            self._queued,
            self._pool.get_num_free_blocks() * limits.block_size,
            limits.total_blocks * limits.block_size,
            running,
            len(self.requests) - running,
            self._steps,
        )
