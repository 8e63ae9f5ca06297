"""The classes that vLLM loads: its own schedulers, with the waiting queue in LARRY's order and a load report.

`Scheduler` is for async scheduling (vLLM's default), `SyncScheduler` for configurations without it. Everything that
vLLM decides stays vLLM's: chunking, prefix caching, preemption, LoRA limits, structured output. Replaced is the order
of the waiting queue, and the moment at which its head may be admitted.

On a vLLM release outside the tested range nothing is replaced: only the load report is added, and what goes wrong in it
ends the report and not the engine. Arguments that an overridden method does not know are passed on.
"""

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

import vllm
from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler as VLLMScheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import Request, RequestStatus

from halffull_larry.accounts import Accounts
from halffull_larry.config import ConfigError, LarryConfig, outside_tested_range
from halffull_larry.memory import Memory, Prefills
from halffull_larry.metrics import exposition
from halffull_larry.ordering import make_ordering
from halffull_larry.queue import OrderedQueue, SkippedQueue
from halffull_larry.report import Identity, LoadServer, Snapshot, render

__all__ = ["Scheduler", "SyncScheduler"]

logger = init_logger("vllm.halffull_larry")  # under vLLM's own logger, whose level and format it shares

_Hook = TypeVar("_Hook", bound=Callable[..., None])


def _observing(hook: _Hook) -> _Hook:
    """A step of the book-keeping: on an untested release its failure ends the book-keeping, not the engine."""

    @functools.wraps(hook)
    def observe(self: "_Larry", *args: Any) -> None:
        if self._blind:
            return
        try:
            hook(self, *args)
        except Exception:
            if self._queue is not None:
                raise
            self._blind = True
            logger.exception("No load report any more on this untested vLLM; requests are served as before")

    return observe  # type: ignore[return-value]  # the same signature


class _Larry(VLLMScheduler):
    """What both classes share. vLLM calls every method from one thread, the engine core's."""

    clock: Callable[[], float] = staticmethod(time.time)
    """s, the clock of `Request.arrival_time`; a simulation sets its own."""
    timer: Callable[[], float] = staticmethod(time.monotonic)
    """s, for durations and ages; a simulation sets its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes what vLLM's scheduler takes.

        Raises:
            ConfigError: a setting is wrong, the class does not suit the configuration, the load port is taken, or
                (strict) this vLLM is outside the tested range.
        """
        super().__init__(*args, **kwargs)
        self._config = config = LarryConfig.of(self.vllm_config.additional_config)
        self._check_class()
        reason = outside_tested_range(vllm.__version__)
        if reason is not None and config.strict:
            raise ConfigError(f"{reason}, and larry.strict is set")
        self._blind = False
        self._now = 0.0
        self._accounts = Accounts()
        self._remote: dict[str, Request] = {}  # left the queue for remote KV, not running yet
        self._prefills: Prefills | None = None  # in this step, once asked for
        self._queue: OrderedQueue | None = None
        self._server: LoadServer | None = None
        self._snapshot = Snapshot()
        if reason is None:
            self._take_over()
        else:
            logger.warning("LARRY steps aside, requests wait in vLLM's own order: %s", reason)
        self._report_from_here(config.policy if reason is None else f"Stock: {reason}")

    def _check_class(self) -> None:
        is_async = isinstance(self, AsyncScheduler)
        if is_async and not self.scheduler_config.async_scheduling:
            raise ConfigError(
                "halffull_larry.Scheduler needs async scheduling, which this configuration does without: "
                "use --scheduler-cls halffull_larry.SyncScheduler"
            )
        if self.scheduler_config.async_scheduling and not is_async:
            raise ConfigError(
                "halffull_larry.SyncScheduler cannot do async scheduling, which this configuration uses: "
                "use --scheduler-cls halffull_larry.Scheduler, or add --no-async-scheduling"
            )

    def _take_over(self) -> None:
        config = self._config
        self._memory = self._make_memory()
        self._queue = self.waiting = OrderedQueue(
            make_ordering(config.policy, alpha=float(config.alpha)),
            arrived=self._arrived,
            fits_now=self._fits_now,
            fits_ever=self._memory.fits_ever,
            has_room=lambda: len(self.running) < self.max_num_running_reqs,
            use_priority=self.policy.value == "priority",
        )
        if hasattr(self, "skipped_waiting"):  # 0.18 to 0.30
            self.skipped_waiting = SkippedQueue(self._queue)
        alpha = f" with alpha = {config.alpha:g}" if config.policy == "LARRY" else ""
        logger.info("The waiting queue is in the order of %s%s", config.policy, alpha)

    def _make_memory(self) -> Memory:
        return Memory(
            self.kv_cache_manager, max_model_len=self.max_model_len, lookahead=getattr(self, "num_lookahead_tokens", 0)
        )

    @_observing
    def _report_from_here(self, scheduler: str) -> None:
        if self._queue is None:
            self._memory = self._make_memory()
        rank = self.parallel_config.data_parallel_index
        self._identity = Identity(
            scheduler=scheduler,
            max_tokens_per_batch=self.max_num_scheduled_tokens,
            max_model_len=self.max_model_len,
            rank=rank,
        )
        self._publish()
        first, host = self._config.load_port, self._config.load_host
        if first is None:
            return
        try:
            self._server = LoadServer(self._report, self._metrics, host=host, port=first + rank)
        except OSError as error:
            raise ConfigError(
                f"the load report cannot be served at {host} port {first + rank} "
                f"(larry.load_port {first} + data_parallel_index {rank}): {error}"
            ) from error
        self._server.start()
        logger.info("The load report is served on port %d, at /load", first + rank)

    # Called in the server's thread: they read one immutable snapshot, and counters that only grow.

    def _report(self) -> bytes:
        if self._blind:
            raise RuntimeError("the book-keeping failed on this vLLM")
        return render(self._identity, self._snapshot, now=self.timer())

    def _metrics(self) -> bytes:
        return exposition(self._identity, self._snapshot, self._accounts, vllm_version=vllm.__version__)

    # What vLLM calls.

    def add_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        """Enqueue."""
        result = super().add_request(request, *args, **kwargs)
        self._on_added(request)
        return result

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """One step."""
        if self._queue is not None:
            # A wall clock may be set back; an order's `now` must not be.
            self._now = max(self._now, self.clock())
            self._prefills = None
            self._queue.start_step(self._now, queue_len=self.get_request_counts()[1])
        output = super().schedule(*args, **kwargs)
        self._on_scheduled(output)
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """The end of a step."""
        unservable = self._unservable()
        ends = [self._end_unservable(request) for request in unservable]
        outputs = super().update_from_output(scheduler_output, *args, **kwargs)
        for request, end in zip(unservable, ends, strict=True):
            outputs.setdefault(request.client_index, EngineCoreOutputs(outputs=[])).outputs.append(end)
        self._on_output(scheduler_output)
        return outputs

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        """Aborts, mostly."""
        result = super().finish_requests(*args, **kwargs)
        self._publish()
        return result

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self._on_ended(request)
        return super()._free_request(request, *args, **kwargs)

    def shutdown(self, *args: Any, **kwargs: Any) -> Any:
        """The engine core ends."""
        if self._server is not None:
            self._server.stop()
        return super().shutdown(*args, **kwargs)

    # The order's questions.

    def _arrived(self, request: Request) -> int:
        """Tokens that the request's admission would have to compute; looked up once, when it enters the queue."""
        tokens: int = request.num_tokens - self._memory.cached(request)[1]
        self._accounts.arrived(request, tokens)
        return tokens

    def _fits_now(self, request: Request, popped: list[Request]) -> bool:
        """Whether the head's whole uncached prefill fits beside what admitted prefills still need.

        `scheduler_reserve_full_isl` compares with the free blocks alone, of which a prefill in progress has yet to
        take its share: two prompts that do not fit together would both be admitted, and one preempted.
        """
        if self._prefills is None:
            self._prefills = Prefills(self._memory, self._accounts.prefilling)
        # Those that do not run were popped to be skipped, and go back when the step ends.
        self._prefills.add(other for other in popped if other.status == RequestStatus.RUNNING)
        if request.status not in (RequestStatus.WAITING, RequestStatus.PREEMPTED) and not _has_grammar(request):
            return True  # vLLM skips it; one whose grammar is compiled it promotes and admits in the same breath
        return self._prefills.leave_room_for(request)

    def _unservable(self) -> list[Request]:
        """Who could never go on, and would stop everybody: in our queue, or among those that hold KV blocks already."""
        if self._queue is None:
            return []
        holders = self.kv_holding_waiting if hasattr(self, "kv_holding_waiting") else self.skipped_waiting
        return [
            *self._queue.aside.values(),
            *(request for request in holders if not self._memory.fits_ever(request)),
        ]

    def _end_unservable(self, request: Request) -> EngineCoreOutput:
        """End a request that no empty cache could hold. The client of one that grew so large keeps its text."""
        if request.num_output_tokens:
            self.finish_requests(request.request_id, RequestStatus.FINISHED_LENGTH_CAPPED)
        else:
            self._accounts.unservable += 1
            logger.warning(
                "Request %s is ended: its prompt of %d tokens is larger than the KV cache of %d tokens",
                request.request_id,
                request.num_prompt_tokens,
                self._memory.total_tokens,
            )
            self.finish_requests(request.request_id, RequestStatus.FINISHED_ERROR)
        return EngineCoreOutput(
            request_id=request.request_id, new_token_ids=[], finish_reason=request.get_finished_reason()
        )

    # Book-keeping.

    @_observing
    def _on_added(self, request: Request) -> None:
        if self._queue is None:
            self._accounts.arrived(request, request.num_prompt_tokens)
        self._publish()

    @_observing
    def _on_scheduled(self, output: Any) -> None:
        if self._queue is not None:
            taken, reordered = self._queue.end_step()
            for request in self._queue.aside.values():
                self._accounts.left(request)  # nothing of it will be computed
            self._accounts.reordered += reordered
            if self._remote:
                taken += self._remote.values()
        else:
            self._now = self.clock()
            taken = [self.requests[new.req_id] for new in output.scheduled_new_reqs]
        for request in taken:
            if request.status == RequestStatus.RUNNING:
                self._remote.pop(request.request_id, None)
                self._accounts.admitted(request, self._now)
            else:
                self._remote[request.request_id] = request
        self._accounts.step_scheduled(output.total_num_scheduled_tokens, self.timer())
        self._publish()

    @_observing
    def _on_output(self, output: Any) -> None:
        accounts = self._accounts
        accounts.step_done(output.total_num_scheduled_tokens, at=self.timer(), now=self.clock())
        if self._queue is not None:
            self._queue.progress(computed_tokens=accounts.computed_tokens, busy_seconds=accounts.busy_seconds)
        self._publish()

    @_observing
    def _on_ended(self, request: Request) -> None:
        self._remote.pop(request.request_id, None)
        failed = request.status in (RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR)
        self._accounts.ended(request, self.clock(), failed=failed)

    @_observing
    def _publish(self) -> None:
        running, waiting = self.get_request_counts()
        self._snapshot = self._accounts.snapshot(
            taken=self.timer(),
            free_tokens=self._memory.free_tokens,
            total_tokens=self._memory.total_tokens,
            running=running,
            waiting=waiting,
        )


def _has_grammar(request: Request) -> bool:
    structured = request.structured_output_request
    return structured is not None and structured.grammar is not None and not isinstance(structured.grammar, Exception)


class Scheduler(_Larry, AsyncScheduler):
    """For vLLM with async scheduling, its default."""


class SyncScheduler(_Larry):
    """For configurations without async scheduling."""
