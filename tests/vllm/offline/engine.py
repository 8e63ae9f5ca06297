"""vLLM's scheduler classes with the rest of the engine left out: no model, no GPU, and a clock that the test holds.

Works on every release in the tested range: what a constructor does not take is not given to it.
"""

import inspect
import json
import tempfile
import warnings
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]  # vLLM brings it; the project's environment has neither
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 16  # tokens
STOP = 7  # the token that ends a request which has it among its stop tokens
STEP = 0.125  # s of virtual time; exact in binary, as are sums of it
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 65536,
    "torch_dtype": "float32",
}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a scheduler is built with."""

    asynchronous: bool = False
    blocks: int = 64
    """Of the KV cache, the null block not counted."""
    budget: int = 256
    """Tokens of a step."""
    max_num_seqs: int = 64
    max_model_len: int = 16_384
    policy: str = "fcfs"
    prefix_caching: bool = False
    long_prefill_token_threshold: int = 0
    watermark: float = 0.0
    larry: Any = None
    """The object under `larry`; None: only that there is no load report."""


def _taken(function: Any, **arguments: Any) -> dict[str, Any]:
    accepted = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in accepted}


@cache
def _model(max_model_len: int) -> ModelConfig:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        return ModelConfig(
            model=folder, tokenizer=folder, dtype="float32", max_model_len=max_model_len, skip_tokenizer_init=True
        )


def vllm_config(setup: Setup) -> VllmConfig:
    """vLLM's configuration, as if the platform could do what `setup` asks for."""
    config = VllmConfig(
        model_config=_model(setup.max_model_len),
        scheduler_config=SchedulerConfig(
            **_taken(
                SchedulerConfig,
                max_num_seqs=setup.max_num_seqs,
                max_num_batched_tokens=setup.budget,
                max_model_len=setup.max_model_len,
                enable_chunked_prefill=True,
                is_encoder_decoder=False,
                policy=setup.policy,
                long_prefill_token_threshold=setup.long_prefill_token_threshold,
                watermark=setup.watermark,
            )
        ),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=setup.prefix_caching),
        additional_config={"larry": {"load_port": None} if setup.larry is None else setup.larry},
    )
    config.scheduler_config.async_scheduling = setup.asynchronous  # which the CPU platform would refuse
    config.cache_config.num_gpu_blocks = setup.blocks + 1
    config.cache_config.enable_prefix_caching = setup.prefix_caching
    return config


def make_scheduler(scheduler_class: type, setup: Setup, config: VllmConfig | None = None) -> Any:
    """A scheduler of vLLM's or of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of vLLM's configuration
        config = config or vllm_config(setup)
        kv_cache = KVCacheConfig(
            num_blocks=setup.blocks + 1,
            kv_cache_tensors=[],
            kv_cache_groups=[
                KVCacheGroupSpec(
                    ["layer"], FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
                )
            ],
        )
        init_none_hash(sha256)
        return scheduler_class(
            vllm_config=config,
            kv_cache_config=kv_cache,
            block_size=BLOCK,
            log_stats=False,
            structured_output_manager=StructuredOutputManager(config),
        )


def make_request(
    request_id: str,
    prompt: Iterable[int],
    *,
    arrival: float,
    max_tokens: int = 1,
    priority: int = 0,
    prefix_caching: bool = False,
    **more: Any,
) -> Request:
    """A request as the engine core would hand it to its scheduler."""
    return Request(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True, stop_token_ids=[STOP]),
        pooling_params=None,
        arrival_time=arrival,
        priority=priority,
        block_hasher=get_request_block_hasher(BLOCK, sha256) if prefix_caching else None,
        **more,
    )


@dataclass
class Client:
    """What the client of one request sees."""

    request: Request
    stop_after: int | None
    tokens: list[int] = field(default_factory=list)
    reason: str | None = None


@dataclass
class Step:
    """What one call of schedule() did."""

    output: SchedulerOutput
    admitted: list[str]
    samples: dict[str, int | None]
    """By request that the step computes: the token that it samples."""


class Engine:
    """The engine core's loop around a scheduler, a fake executor and a clock."""

    def __init__(self, scheduler_class: type, setup: Setup) -> None:
        self.setup = setup
        self.now = 1_000.0
        self.scheduler = make_scheduler(scheduler_class, setup)
        self.scheduler.clock = self.scheduler.timer = lambda: self.now
        self.clients: dict[str, Client] = {}
        self.in_flight: deque[Step] = deque()
        self.admissions: list[str] = []
        self.first_tokens: dict[str, float] = {}  # s after arrival
        self.preemptions = 0

    def add(
        self,
        request_id: str,
        prompt: int | Iterable[int],
        *,
        max_tokens: int = 1,
        stop_after: int | None = None,
        arrival: float | None = None,
        **more: Any,
    ) -> Request:
        """A request arrives: its prompt, or a length for one that shares no prefix."""
        if isinstance(prompt, int):
            prompt = [100 + len(self.clients) % 800] * prompt
        request = make_request(
            request_id,
            prompt,
            arrival=self.now if arrival is None else arrival,
            max_tokens=max_tokens,
            prefix_caching=self.setup.prefix_caching,
            **more,
        )
        assert request_id not in self.clients
        self.clients[request_id] = Client(request, stop_after)
        self.scheduler.add_request(request)
        return request

    def abort(self, request_id: str) -> None:
        """The client leaves."""
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        client = self.clients[request_id]
        if client.reason is None:
            client.reason = "abort"

    def reset(self) -> None:
        """Every running request is preempted, and the prefix cache emptied."""
        assert self.scheduler.reset_prefix_cache(reset_running_requests=True)

    @property
    def live(self) -> list[str]:
        """Ids of the requests that are not over."""
        return [request_id for request_id, client in self.clients.items() if client.reason is None]

    def schedule(self) -> Step | None:
        """The first half of a step, when there is anything to do."""
        if not self.scheduler.has_requests():
            return None
        before = {request.request_id for request in self.scheduler.running}
        output = self.scheduler.schedule()
        running = [request.request_id for request in self.scheduler.running]
        assert len(set(running)) == len(running)
        admitted = [request_id for request_id in running if request_id not in before]
        step = Step(output, admitted, {})
        for request_id in output.num_scheduled_tokens:
            request = self.scheduler.requests[request_id]
            step.samples[request_id] = None if request.is_prefill_chunk else self._sample(request)
        self.admissions += admitted
        self.preemptions += len(output.preempted_req_ids or ())
        self.in_flight.append(step)
        return step

    def _sample(self, request: Request) -> int:
        """The token of this position, the same whenever and however often it is computed."""
        index = request.num_computed_tokens - request.num_prompt_tokens
        return STOP if index + 1 == self.clients[request.request_id].stop_after else 100 + index % 800

    def deliver(self) -> None:
        """The second half of the oldest step."""
        step = self.in_flight.popleft()
        ids = list(step.samples)
        outputs = self.scheduler.update_from_output(
            step.output,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
                sampled_token_ids=[[] if token is None else [token] for token in step.samples.values()],
            ),
        )
        for batch in outputs.values():
            for output in batch.outputs:
                self._see(output)

    def _see(self, output: Any) -> None:
        client = self.clients[output.request_id]
        assert client.reason is None, f"{output.request_id} has ended, and yet there is {output}"
        if output.new_token_ids and not client.tokens:
            self.first_tokens[output.request_id] = self.now - client.request.arrival_time
        client.tokens += output.new_token_ids
        if output.finish_reason is not None:
            client.reason = str(output.finish_reason)

    def step(self) -> Step | None:
        """One turn of the engine core's loop: with async scheduling, step k + 1 is scheduled before k is given back."""
        self.now += STEP
        step = self.schedule()
        if not self.may_overlap(step):
            self.deliver_any()
        return step

    def may_overlap(self, step: Step | None) -> bool:
        """Whether the loop schedules again before it waits for an output."""
        return (
            self.setup.asynchronous
            and step is not None
            and len(self.in_flight) < 2
            and (step.output.total_num_scheduled_tokens > 0 or self.scheduler.has_requests())
        )

    def deliver_any(self) -> None:
        """The second half, if any step is in flight."""
        if self.in_flight:
            self.deliver()

    def run(self, *, steps: int = 20_000) -> None:
        """Until nothing is left to do.

        Raises:
            AssertionError: it takes more steps than that: somebody waits for ever.
        """
        for _ in range(steps):
            if not self.in_flight and not self.scheduler.has_requests():
                return
            self.step()
        raise AssertionError(f"not over after {steps} steps: {self.live}")

    def outcomes(self) -> dict[str, tuple[str | None, int]]:
        """Finish reason and length of each request."""
        return {request_id: (client.reason, len(client.tokens)) for request_id, client in self.clients.items()}

    def report(self) -> dict[str, Any]:
        """What the load report says now."""
        answer: dict[str, Any] = json.loads(self.scheduler._report())
        return answer
