"""Our schedulers, with the inputs and the outcome of every step written down; servers load `recording.SyncScheduler`.

One JSON object a line, to the file that $RECORD_TO names: {"arrived": …} for a request that came, {"step": …} for a
step. It reads vLLM's own fields before the step, and asks nothing of the plugin's order.
"""

import json
import os
from pathlib import Path
from typing import Any

from vllm.v1.request import Request

import halffull_larry


class _Recording:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._log = Path(os.environ["RECORD_TO"]).open("a", buffering=1)  # noqa: SIM115  as long as the engine

    def add_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        cached = 0
        manager = self.kv_cache_manager  # type: ignore[attr-defined]
        if manager.enable_caching and request.block_hashes:
            cached = manager.coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)[1]
        self._write(
            arrived=request.request_id,
            at=request.arrival_time,
            tokens=request.num_prompt_tokens,
            cached=cached,
            priority=request.priority,
        )
        return super().add_request(request, *args, **kwargs)  # type: ignore[misc]

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        waiting = [
            request
            for request in self.requests.values()
            if request.status.name in ("WAITING", "PREEMPTED") or request.status.name.startswith("WAITING_FOR")
        ]  # type: ignore[attr-defined]
        before = [
            {"id": r.request_id, "status": r.status.name, "tokens": r.num_tokens, "preemptions": r.num_preemptions}
            for r in waiting
        ]
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        new = [request.req_id for request in output.scheduled_new_reqs]
        resumed = sorted(set(output.num_scheduled_tokens) & {r["id"] for r in before} - set(new))
        running = self.running  # type: ignore[attr-defined]
        block = self.kv_cache_manager.coordinator.single_type_managers[0].block_size  # type: ignore[attr-defined]
        self._write(
            step={
                "waiting": before,
                "admitted": new,
                "resumed": resumed,
                "scheduled": sum(output.num_scheduled_tokens.values()),
                "running": len(running),
                "free_blocks": self.kv_cache_manager.block_pool.get_num_free_blocks(),  # type: ignore[attr-defined]
                "promised_blocks": sum(
                    -(-r.num_tokens // block) - -(-r.num_computed_tokens // block)
                    for r in running
                    if r.num_computed_tokens < r.num_tokens
                ),
                "block": block,
            }
        )
        return output

    def _write(self, **line: Any) -> None:
        self._log.write(json.dumps(line) + "\n")


class Scheduler(_Recording, halffull_larry.Scheduler):
    """With async scheduling."""


class SyncScheduler(_Recording, halffull_larry.SyncScheduler):
    """Without."""
