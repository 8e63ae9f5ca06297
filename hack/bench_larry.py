"""`make bench-vllm`: what the scheduler plugin costs, as ratios within one run (these machines are shared and noisy).

step_ratio: CPU time of schedule() + update_from_output() with our order over stock FCFS, 256 requests running and so
many waiting. The schedulers take turns step by step on equal workloads (requests end and are admitted all the time, the
queue is refilled to its length), the thread's CPU time is summed over blocks of steps, and the ratio is the median over
blocks and repetitions.

report_cpu_share: CPU time of the report's thread per poll × 10 polls/s, over the CPU time of LARRY's steps with 1,000
waiting, one each 30 ms.
"""

import argparse
import gc
import http.client
import json
import platform
import random
import statistics
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import vllm
from tests.vllm.offline.engine import Setup, make_request, make_scheduler
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

import halffull_larry
from halffull_larry.report import LoadServer

RUNNING = 256  # requests
OUTPUT = 64  # tokens of a request, on average: four of 256 end in every step
PER_STEP = 8  # requests made in advance for each step: twice what it should need
WARM_UP = 6  # steps
STEP_SECONDS = 0.030
POLLS_PER_SECOND = 10
CONTENDERS = ("Stock", "LARRY", "LARRYPlus", "FCFS")


class Contender:
    """A scheduler at work with a queue of constant length, as the engine core drives it with async scheduling."""

    def __init__(self, name: str, waiting: int, seed: int, steps: int = 0) -> None:
        self.waiting = waiting
        self._random = random.Random(seed)
        self._now = 1_000.0
        self._in_flight: deque[tuple[Any, ModelRunnerOutput]] = deque()
        self.scheduler = make_scheduler(
            AsyncScheduler if name == "Stock" else halffull_larry.Scheduler,
            Setup(
                asynchronous=True,
                blocks=40_000,
                budget=8_192,
                max_num_seqs=RUNNING,
                larry={"policy": "LARRY" if name == "Stock" else name, "load_port": None},
            ),
        )
        self.scheduler.clock = lambda: self._now
        self.admitted = 0
        self._requests = self._make_requests(RUNNING + waiting + (steps + WARM_UP) * PER_STEP)
        self._add(RUNNING + waiting)
        for _ in range(WARM_UP):
            self.step()

    def _make_requests(self, count: int) -> list[Request]:
        """Made in another order than they arrive: neighbours in the queue are no neighbours in a real engine's heap.

        Otherwise whoever runs them as they come has the better cache hits, which is not the plugin's doing.
        """
        requests: list[Request | None] = [None] * count
        places = list(range(count))
        self._random.shuffle(places)
        for place in places:
            # Lengths of 2 to 10 blocks: an order that prefers short ones saves next to nothing on block lists.
            prompt = [7 + place % 900] * self._random.randint(17, 160)
            output = self._random.randint(2, 2 * OUTPUT - 2)
            requests[place] = make_request(f"r{place}", prompt, arrival=0.0, max_tokens=output)
        return [request for request in reversed(requests) if request is not None]

    def _add(self, count: int) -> None:
        for _ in range(count):
            request = self._requests.pop()
            request.arrival_time = self._now + self._random.random() * STEP_SECONDS
            self.scheduler.add_request(request)

    def step(self) -> float:
        """One step; s of CPU in schedule() and update_from_output()."""
        scheduler = self.scheduler
        self._now += STEP_SECONDS
        running, waiting = scheduler.get_request_counts()
        # With an empty queue, what ended is replaced by what is admitted at once.
        self._add(self.waiting - waiting if self.waiting else RUNNING - running)
        started = time.thread_time()
        output = scheduler.schedule()
        spent = time.thread_time() - started
        self.admitted += len(output.scheduled_new_reqs)
        ids = list(output.num_scheduled_tokens)
        tokens = [[] if scheduler.requests[request_id].is_prefill_chunk else [300] for request_id in ids]
        positions = {request_id: index for index, request_id in enumerate(ids)}
        self._in_flight.append(
            (output, ModelRunnerOutput(req_ids=ids, req_id_to_index=positions, sampled_token_ids=tokens))
        )
        if len(self._in_flight) == 2:
            output, sampled = self._in_flight.popleft()
            started = time.thread_time()
            scheduler.update_from_output(output, sampled)
            spent += time.thread_time() - started
        return spent


def measure(waiting: int, *, repetitions: int, blocks: int, steps: int) -> dict[str, Any]:
    """CPU per step of each contender, and the ratios of ours to stock."""
    ratios: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    microseconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    admitted = 0
    for repetition in range(repetitions):
        contenders = {name: Contender(name, waiting, repetition, blocks * steps) for name in CONTENDERS}
        order = list(CONTENDERS)
        gc.collect()
        gc.freeze()  # as the engine core does
        gc.disable()
        for _ in range(blocks):
            spent = dict.fromkeys(CONTENDERS, 0.0)
            for _ in range(steps):
                order.append(order.pop(0))
                for name in order:
                    spent[name] += contenders[name].step()
            for name in CONTENDERS:
                ratios[name].append(spent[name] / spent["Stock"])
                microseconds[name].append(spent[name] / steps * 1e6)
        gc.enable()
        gc.unfreeze()
        assert all(contender.admitted for contender in contenders.values())
        admitted = contenders["LARRY"].admitted
    return {
        "step_ratio": {name: _median(ratios[name]) for name in CONTENDERS[1:]},
        "step_ratio_quartiles": {name: _quartiles(ratios[name]) for name in CONTENDERS[1:]},
        "step_cpu_us": {name: round(statistics.median(microseconds[name]), 1) for name in CONTENDERS},
        "admitted_per_step": round((admitted - RUNNING) / (blocks * steps + WARM_UP - 1), 2),
    }


def _median(values: list[float]) -> float:
    return round(statistics.median(values), 4)


def _quartiles(values: list[float]) -> list[float]:
    low, _, high = statistics.quantiles(values, n=4)
    return [round(low, 4), round(high, 4)]


def poll_cpu(polls: int) -> float:
    """S of CPU that the report's thread spends per poll, over one kept connection as the picker has it."""
    contender = Contender("LARRY", 1_000, seed=0)
    server = LoadServer(contender.scheduler._report, host="127.0.0.1", port=0)  # noqa: SLF001  what it would serve
    server.start()
    clock = time.pthread_getcpuclockid(server._thread.ident)  # type: ignore[arg-type]  # noqa: SLF001  it is started
    connection = http.client.HTTPConnection("127.0.0.1", server.port)

    def all_polls() -> Iterator[float]:
        for _ in range(polls):
            before = time.clock_gettime(clock)
            connection.request("GET", "/load")
            assert connection.getresponse().read()
            yield time.clock_gettime(clock) - before

    try:
        return statistics.mean(all_polls())
    finally:
        connection.close()
        server.stop()


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps: a check that nothing is far off")
    parser.add_argument("--out", type=Path, default=Path("build/bench/larry.json"))
    parser.add_argument("--waiting", type=int, nargs="+", default=[0, 100, 1_000, 10_000])
    arguments = parser.parse_args()
    size = {"repetitions": 1, "blocks": 10, "steps": 10} if arguments.quick else {
        "repetitions": 3, "blocks": 25, "steps": 20,
    }  # fmt: skip
    result: dict[str, Any] = {"vllm": vllm.__version__, "python": platform.python_version(), "running": RUNNING}
    result["waiting"] = {}
    for waiting in arguments.waiting:
        measured = result["waiting"][str(waiting)] = measure(waiting, **size)
        print(f"{waiting:>6} waiting: {json.dumps(measured)}")
    reference = result["waiting"].get("1000") or measured
    step_cpu = reference["step_cpu_us"]["LARRY"] / 1e6
    poll = poll_cpu(200 if arguments.quick else 2_000)
    result["report"] = {
        "poll_cpu_us": round(poll * 1e6, 1),
        "polls_per_second": POLLS_PER_SECOND,
        "step_seconds": STEP_SECONDS,
    }
    result["step_ratio"] = {waiting: row["step_ratio"]["LARRY"] for waiting, row in result["waiting"].items()}
    result["report_cpu_share"] = round(POLLS_PER_SECOND * poll / (step_cpu / STEP_SECONDS), 5)
    print(f"report: {json.dumps(result['report'])}, share {result['report_cpu_share']:.3%}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
