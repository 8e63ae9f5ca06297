"""The emulated engine's core: continuous batching with chunked prefill, KV blocks and preemption. Pure.

It mirrors the scheduling of vLLM V1 (synchronous, no prefix cache, no speculation):

- Running requests first, in the order of their admission: each decode one token, then what is left of a prefill.
- A running request that finds no free block preempts the newest running one, itself at the last; that one loses its
  blocks, goes back to the queue and computes its prompt and its output anew. A step that preempted admits nobody.
- Then waiting requests in the order of an `Ordering`, until the head's whole uncached prefill does not fit beside what
  admitted prefills still need, or the step's token budget or max_num_seqs is used up. A prompt longer than the rest
  of the budget, or than the threshold for long prefills, is chunked.
- Aborts take effect between two steps, after the outputs of the step in flight.

No clock, no I/O: the caller says what time it is, and how time passes between `step_begin` and `step_end`.

A step costs the same however many requests run. All decodes advance by one token in every step (their budget is at
least max_num_seqs), so the step in which a request finishes, and whether it needs a block, are known from its first
token on: a calendar by step number and a count per phase of the block replace a loop over the running requests. Only
the rare step that must preempt walks over them.

And no decode is ever left out of a step. Without a threshold for long prefills, at most one running request is in the
middle of its prefill, the newest: a prefill is cut only by the end of the budget, after which nobody is admitted. With
a threshold there may be several, and newer requests may decode behind them; but what a request takes of the budget
only falls from step to step, except that of one which the end of the budget had cut, and nobody is behind that one.
"""

from halffull_lab.engine_accounts import Accounts
from halffull_lab.engine_requests import EngineLimits, Output, Prompt, Request, StepPlan
from halffull_lab.latency import LatencyModel
from halffull_larry.ordering import Ordering
from halffull_larry.snapshot import Snapshot


class Engine:
    """One emulated engine. Times are seconds of the caller's clock, which must not go back."""

    def __init__(self, *, latency: LatencyModel, limits: EngineLimits, ordering: Ordering) -> None:
        self.latency = latency
        self.limits = limits
        self.ordering = ordering
        self.slowdown = 1.0
        """Every step takes this many times as long."""
        self._accounts = Accounts()
        self.totals = self._accounts.totals
        self.requests: dict[str, Request] = {}
        """Waiting and running."""
        self._running: dict[Request, None] = {}  # in the order of admission
        self._prefilling: dict[Request, None] = {}  # in the middle of their prefill, in the order of admission
        self._completing: list[Request] = []  # whose prefill ends with the step in flight
        self._decodes = 0
        self._context = 0  # Σ of the decodes' computed tokens
        self._growing = [0] * limits.block_size  # decodes by phase
        self._calendar: dict[int, list[Request]] = {}  # by the step at whose end they have news
        self._step = 0
        self._free = limits.total_blocks
        self._queued = 0  # tokens
        self._plan: StepPlan | None = None
        self._aborts: list[str] = []
        self._last_end = 0.0
        self.snapshot = Snapshot()
        """The load report's part that changes; replaced after scheduling and after outputs, finishes and aborts."""
        self._publish(0.0)

    # What the caller does.

    def check(self, *, prompt_tokens: int, output_tokens: int) -> None:
        """Refuse what could never run.

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
        """Enqueue a sequence that will produce exactly `output_tokens`.

        Args:
            request_id: unique in the engine.
            prompt: shared by the children of n > 1, each of which computes it (there is no prefix cache).
            output_tokens: including the first.
            arrival: s; what its wait and its TTFT run from.
            priority: lower goes first.
            interval: `step_end` tells of the first token, of every `interval` tokens after it, and of the last;
                0: of the first and the last only.
            max_tokens: what its client allows, for who reserves it (`NoPreempt`); None: exactly `output_tokens`.

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
        self._enqueue(request, preempted=False)
        return request

    def abort(self, request_id: str, now: float) -> None:
        """Forget a sequence; at the end of the step in flight, if there is one. Unknown ids are ignored."""
        if self._plan is not None:
            self._aborts.append(request_id)
        elif self._abort(request_id):
            self._publish(now)

    def generated(self, request: Request) -> int:
        """Output tokens that a request has produced by the end of the last step."""
        return request.generated + (self._step - 1 - request.base if request.base >= 0 else 0)

    def step_begin(self, now: float) -> StepPlan | None:
        """Schedule a step at `now`; None when there is nothing to run.

        Raises:
            RuntimeError: a step is in flight.
        """
        if self._plan is not None:
            raise RuntimeError("a step is in flight")
        if not self.requests:
            return None
        self.ordering.start_step(now)
        chunks = self._next_chunks(self.limits.max_tokens_per_batch - self._decodes)
        growth = self._growing[self._step % self.limits.block_size]
        preempted = 0
        if growth + sum(blocks for _, _, blocks in chunks) > self._free:
            chunks, preempted = self._preempt_for_running()
        else:
            self._free -= growth
        decodes, context = self._decodes, self._context
        budget = self.limits.max_tokens_per_batch - decodes
        prefill = admitted = 0
        pairs = 0.0
        for request, chunk, blocks in chunks:
            pairs += chunk * (request.prefill_done + chunk / 2)
            prefill += chunk
            self._compute(request, chunk, blocks)
        if not preempted:
            reserved = self._reserved() if self._prefilling and prefill < budget else 0
            places = min(self.limits.max_num_seqs, len(self.requests))
            while prefill < budget and len(self._running) < places:
                request_id = self.ordering.peek()
                assert request_id is not None  # noqa: S101  not all run
                request = self.requests[request_id]
                whole = self._blocks(request.prefill_tokens)
                if not self._claim(request, whole + reserved):
                    break
                self.ordering.pop()
                self._running[request] = None
                if request.admitted_at is None:
                    request.admitted_at = now
                admitted += 1
                chunk = self._chunk(request, budget - prefill)
                blocks = self._blocks(chunk)
                reserved += whole - blocks
                pairs += chunk * chunk / 2
                prefill += chunk
                self._compute(request, chunk, blocks)
        seconds = self.latency.step_seconds(
            prefill_tokens=prefill, decodes=decodes, decode_context=context, prefill_pairs=pairs
        )
        self._plan = StepPlan(seconds * self.slowdown, prefill, decodes, admitted, preempted)
        self._publish(now)
        return self._plan

    def step_end(self, now: float) -> list[Output]:
        """The step in flight is over at `now`: tokens come out, finished sequences leave, aborts are applied.

        Raises:
            RuntimeError: no step is in flight.
        """
        plan = self._plan
        if plan is None:
            raise RuntimeError("no step is in flight")
        self._plan = None
        step = self._step
        outputs: list[Output] = []
        totals = self.totals
        accounts = self._accounts
        accounts.busy_seconds += plan.duration
        accounts.computed_tokens += plan.prefill_tokens + plan.decodes
        if plan.decodes:
            self._context += plan.decodes
            totals.generation_tokens += plan.decodes
            # Every one of them got its last token at the end of the step before, or when it was re-admitted.
            totals.itl_seconds += plan.decodes * (now - self._last_end)
            totals.itl_count += plan.decodes
            for request in self._calendar.pop(step, ()):
                generated = request.generated + step - request.base
                finished = generated == request.output_tokens
                if finished:
                    request.generated = generated
                    self._stop_decoding(request, step)
                    self._finish(request, now)
                else:
                    self._expect(request, generated, step)
                outputs.append(Output(request, generated, finished))
        outputs += [self._first_output(request, now) for request in self._completing]
        self._completing.clear()
        self._step = step + 1
        self._last_end = now
        for request_id in self._aborts:
            self._abort(request_id)
        self._aborts.clear()
        self.ordering.progress(computed_tokens=accounts.computed_tokens, busy_seconds=accounts.busy_seconds)
        self._publish(now)
        return outputs

    # Within.

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_size)

    def _enqueue(self, request: Request, *, preempted: bool) -> None:
        self._queued += request.prefill_tokens
        self.ordering.add(
            request.request_id,
            arrival=request.arrival,
            tokens=request.prefill_tokens,
            priority=request.priority,
            preempted=preempted,
        )

    def _claim(self, request: Request, blocks: int) -> bool:  # noqa: ARG002  another policy looks at it
        """Whether the head may be admitted, and if so it is: `blocks`, all it needs for its prefill, must be free."""
        return blocks <= self._free

    def _chunk(self, request: Request, budget: int) -> int:
        """What a step computes of a request's prefill."""
        chunk = min(request.prefill_tokens - request.prefill_done, budget)
        threshold = self.limits.long_prefill_token_threshold
        return threshold if 0 < threshold < chunk and len(self.requests) > 1 else chunk

    def _next_chunks(self, budget: int) -> list[tuple[Request, int, int]]:
        """What a step computes of the prefills in progress, and the blocks that it takes."""
        chunks = []
        for request in self._prefilling:
            if not budget:
                break
            chunk = self._chunk(request, budget)
            budget -= chunk
            chunks.append((request, chunk, self._chunk_blocks(request, chunk)))
        return chunks

    def _chunk_blocks(self, request: Request, chunk: int) -> int:
        return self._blocks(request.prefill_done + chunk) - self._blocks(request.prefill_done)

    def _reserved(self) -> int:
        """Blocks that the prefills in progress will still take."""
        return sum(
            self._blocks(request.prefill_tokens) - self._blocks(request.prefill_done) for request in self._prefilling
        )

    def _compute(self, request: Request, chunk: int, blocks: int) -> None:
        self._free -= blocks
        self._queued -= chunk
        request.prefill_done += chunk
        if request.prefill_done == request.prefill_tokens:
            self._prefilling.pop(request, None)
            self._completing.append(request)
        else:
            self._prefilling[request] = None

    def _first_output(self, request: Request, now: float) -> Output:
        """The token that the end of a prefill gives: the request's first, or the next one after a preemption."""
        self._accounts.token(request, now)
        if request.generated == request.output_tokens:
            self._free += self._blocks(request.prefill_tokens)
            self._finish(request, now)
            return Output(request, request.generated, finished=True)
        request.base = self._step
        # In step base + 1 it computes the token at position prefill_tokens, which opens a block when that divides.
        request.phase = (self._step + 1 - request.prefill_tokens) % self.limits.block_size
        self._growing[request.phase] += 1
        self._decodes += 1
        self._context += request.prefill_tokens
        self._expect(request, request.generated, self._step)
        return Output(request, request.generated, finished=False)

    def _expect(self, request: Request, generated: int, step: int) -> None:
        """Enter the next news of a decoding request, which has `generated` tokens after `step`, into the calendar."""
        left = request.output_tokens - generated
        interval = request.interval
        if interval:
            # Every K tokens, counted from the first: 1, K + 1, 2K + 1, …
            left = min(left, interval - (generated - 1) % interval)
        request.next_event = step + left
        self._calendar.setdefault(request.next_event, []).append(request)

    def _stop_decoding(self, request: Request, last_step: int) -> None:
        """Free the blocks of a request that decoded up to `last_step`, and take it out of the incremental sums."""
        computed = request.prefill_tokens + last_step - request.base
        self._growing[request.phase] -= 1
        self._decodes -= 1
        self._context -= computed
        self._free += self._blocks(computed)
        request.base = -1

    def _leave_running(self, request: Request) -> None:
        """Take a running request off, between two steps or while one is being scheduled."""
        del self._running[request]
        if request in self._prefilling:
            del self._prefilling[request]
            self._free += self._blocks(request.prefill_done)
            self._queued -= request.prefill_tokens - request.prefill_done
            return
        news = self._calendar[request.next_event]
        news.remove(request)
        if not news:
            del self._calendar[request.next_event]
        request.generated = self.generated(request)
        request.last_token_at = self._last_end
        self._stop_decoding(request, self._step - 1)

    def _preempt_for_running(self) -> tuple[list[tuple[Request, int, int]], int]:
        """Give each running request the blocks that it needs, at the cost of the newest.

        Returns:
            What is computed of the prefills in progress, with blocks that are still free, and how many were preempted.
        """
        phase = self._step % self.limits.block_size
        order = list(self._running)
        end = len(order)
        chunks = []
        promised, budget = 0, self.limits.max_tokens_per_batch
        for index, request in enumerate(order):
            if index == end or not budget:
                break
            if request in self._prefilling:
                chunk = self._chunk(request, budget)
                blocks = self._chunk_blocks(request, chunk)
            else:
                chunk = 1
                blocks = int(request.phase == phase)
            while promised + blocks > self._free and index < end:
                end -= 1
                self._preempt(order[end])
            if index == end:  # down to itself
                break
            budget -= chunk
            if request in self._prefilling:
                chunks.append((request, chunk, blocks))
                promised += blocks
            else:
                self._free -= blocks
        return chunks, len(order) - end

    def _preempt(self, request: Request) -> None:
        self._leave_running(request)
        request.prefill_tokens = request.prompt.tokens + request.generated
        request.prefill_done = 0
        self.totals.preemptions += 1
        self._enqueue(request, preempted=True)

    def _finish(self, request: Request, now: float) -> None:
        del self.requests[request.request_id]
        del self._running[request]
        self._accounts.finished(request, now)

    def _abort(self, request_id: str) -> bool:
        request = self.requests.pop(request_id, None)
        if request is None:
            return False
        if request in self._running:
            self._leave_running(request)
        else:
            self.ordering.remove(request_id)
            self._queued -= request.prefill_tokens
        self.totals.aborted += 1
        return True

    def _publish(self, now: float) -> None:
        limits = self.limits
        running = len(self._running)
        self.snapshot = self._accounts.snapshot(
            now,
            self._queued,
            self._free * limits.block_size,
            limits.total_blocks * limits.block_size,
            running,
            len(self.requests) - running,
            self._step,
        )
