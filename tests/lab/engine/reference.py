"""vLLM V1's synchronous scheduling, written request by request: the slow truth that the fast engine must equal."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from halffull_lab.engine_requests import EngineLimits
from halffull_larry.ordering import FCFS, make_ordering


@dataclass(eq=False)
class Sequence:
    request_id: str
    arrival: float
    prompt: int
    output: int
    max_tokens: int
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    decoding: bool = False

    @property
    def tokens(self) -> int:
        return self.prompt + self.generated

    @property
    def remaining(self) -> int:
        return self.output - self.generated


class ReferenceEngine:
    def __init__(self, *, limits: EngineLimits, ordering: Any) -> None:
        self.limits = limits
        self.ordering = ordering
        self.all: dict[str, Sequence] = {}
        self.running: list[Sequence] = []
        self.scheduled: dict[Sequence, int] = {}
        self.free = limits.total_blocks
        self.steps = self.computed = 0

    def add(self, request_id: str, prompt: int, output: int, arrival: float, max_tokens: int | None = None) -> None:
        self.all[request_id] = Sequence(request_id, arrival, prompt, output, max_tokens or output)
        self.ordering.add(request_id, arrival=arrival, tokens=prompt)

    def allocate(self, sequence: Sequence, upto: int) -> bool:
        need = -(-upto // self.limits.block_size) - sequence.blocks
        if need > self.free:
            return False
        self.free -= need
        sequence.blocks += need
        return True

    def release(self, sequence: Sequence) -> None:
        self.free += sequence.blocks
        sequence.blocks = 0

    def abort(self, request_id: str) -> None:
        sequence = self.all.pop(request_id, None)
        if sequence is None:
            return
        if sequence in self.running:
            self.running.remove(sequence)
            self.release(sequence)
        else:
            self.ordering.remove(request_id)

    def schedule(self, now: float) -> tuple[int, int, int, int, int] | None:
        """Prefill tokens, decodes, context of the decodes, admitted, preempted."""
        if not self.all:
            return None
        self.ordering.start_step(now)
        self.scheduled = {}
        preempted, decodes, context = self.schedule_running()
        admitted = 0 if preempted else self.schedule_waiting()
        return sum(self.scheduled.values()) - decodes, decodes, context, admitted, preempted

    def chunk(self, sequence: Sequence, budget: int) -> int:
        threshold = self.limits.long_prefill_token_threshold if len(self.all) > 1 else 0
        return min(sequence.tokens - sequence.computed, budget, threshold or budget)

    def still_needed(self) -> int:
        """Blocks that admitted prefills will take in later steps."""
        size = self.limits.block_size
        return sum(-(-one.tokens // size) - one.blocks for one in self.running if not one.decoding)

    def schedule_running(self) -> tuple[int, int, int]:
        budget = self.limits.max_tokens_per_batch
        preempted: list[Sequence] = []
        decodes = context = index = 0
        while index < len(self.running) and budget:
            sequence = self.running[index]
            count = self.chunk(sequence, budget)
            while not self.allocate(sequence, sequence.computed + count):
                victim = self.running.pop()
                self.release(victim)
                preempted.append(victim)
                if victim is sequence:
                    break
            if sequence in preempted:
                break
            self.scheduled[sequence] = count
            budget -= count
            if sequence.decoding:
                decodes += 1
                context += sequence.computed
            index += 1
        for victim in preempted:
            self.wait_again(victim)
        return len(preempted), decodes, context

    def wait_again(self, victim: Sequence) -> None:
        victim.computed = 0
        victim.decoding = False
        self.ordering.add(victim.request_id, arrival=victim.arrival, tokens=victim.tokens, preempted=True)

    def fits(self, sequence: Sequence) -> bool:
        return -(-sequence.tokens // self.limits.block_size) + self.still_needed() <= self.free

    def schedule_waiting(self) -> int:
        budget = self.limits.max_tokens_per_batch - sum(self.scheduled.values())
        admitted = 0
        while budget and len(self.running) < self.limits.max_num_seqs:
            request_id = self.ordering.peek()
            if request_id is None:
                break
            sequence = self.all[request_id]
            if not self.fits(sequence):
                break
            self.ordering.pop()
            count = self.chunk(sequence, budget)
            assert self.allocate(sequence, count)
            self.running.append(sequence)
            self.scheduled[sequence] = count
            budget -= count
            admitted += 1
        return admitted

    def finish_step(self) -> dict[str, tuple[int, bool]]:
        """By id, of those that got a token: tokens so far, and whether it was the last."""
        news = {}
        for sequence, count in self.scheduled.items():
            sequence.computed += count
            self.computed += count
            if sequence.computed < sequence.tokens:
                continue
            sequence.generated += 1
            sequence.decoding = True
            done = sequence.generated == sequence.output
            news[sequence.request_id] = (sequence.generated, done)
            if done:
                self.running.remove(sequence)
                self.release(sequence)
                del self.all[sequence.request_id]
        self.steps += 1
        return news

    @property
    def queued(self) -> int:
        """Tokens of prefills not computed; those scheduled count as computed. To be asked while a step is in flight."""
        waiting = sum(self.all[request_id].tokens for request_id in self.ordering)
        running = (one for one in self.running if not one.decoding)
        return waiting + sum(one.tokens - one.computed - self.scheduled.get(one, 0) for one in running)


class NoPreemptReference(ReferenceEngine):
    def __init__(self, limits: EngineLimits) -> None:
        super().__init__(limits=limits, ordering=FCFS())

    def fits(self, sequence: Sequence) -> bool:
        size = self.limits.block_size
        last = [one.prompt + one.max_tokens - 1 for one in (*self.running, sequence)]
        return sum(-(-tokens // size) for tokens in last) <= self.limits.total_blocks


class ShortestFirst:
    """A list, searched whenever it is asked."""

    def __init__(self) -> None:
        self.waiting: list[Sequence] = []
        self.all: dict[str, Sequence] = {}

    def __iter__(self) -> Iterator[str]:
        return iter([one.request_id for one in self.waiting])

    def start_step(self, now: float) -> None:
        pass

    def add(self, request_id: str, **_: Any) -> None:
        self.waiting.append(self.all[request_id])

    def peek(self) -> str | None:
        best = min(self.waiting, key=lambda one: (one.remaining, one.arrival), default=None)
        return best.request_id if best else None

    def pop(self) -> None:
        self.remove(self.peek())

    def remove(self, request_id: str | None) -> None:
        self.waiting = [one for one in self.waiting if one.request_id != request_id]


class TRAILReference(ReferenceEngine):
    """Whom to preempt is found by trying: fewer first, each time a whole step on a copy of everything."""

    def __init__(self, limits: EngineLimits) -> None:
        super().__init__(limits=limits, ordering=ShortestFirst())
        self.ordering.all = self.all
        self.forced = 0

    def schedule(self, now: float) -> tuple[int, int, int, int, int] | None:
        forced = self.make_room()
        plan = super().schedule(now)
        if plan is None:
            return None
        assert not plan[-1]
        return (*plan[:-1], forced)

    def preempt(self, count: int, *, longer_than: int = -1) -> bool:
        """The `count` with the most remaining; False if there are not so many."""
        # Sorted is stable: of those that are equal the one admitted last stands last.
        order = sorted(self.running, key=lambda one: (one.remaining, one.arrival))
        victims = [one for one in order if one.remaining > longer_than][::-1][:count]
        for victim in victims:
            self.running.remove(victim)
            self.release(victim)
            self.wait_again(victim)
        return len(victims) == count

    def make_room(self) -> int:
        forced = 0
        size = self.limits.block_size
        while sum(-(-one.tokens // size) for one in self.running) > self.limits.total_blocks:
            self.preempt(1)
            forced += 1
        while True:
            head = self.turned_away()
            if head is None:
                return forced
            for count in range(1, len(self.running) + 1):
                trial = copy.deepcopy(self)
                if not trial.preempt(count, longer_than=head.remaining):
                    return forced
                trial.step()
                if any(one.request_id == head.request_id for one in trial.running):
                    self.preempt(count, longer_than=head.remaining)
                    forced += count
                    break
            else:
                return forced

    def step(self) -> None:
        self.scheduled = {}
        self.schedule_running()
        self.schedule_waiting()

    def turned_away(self) -> Sequence | None:
        """Whose turn comes in the next step as it stands, while budget is left, and who does not get in."""
        trial = copy.deepcopy(self)
        trial.step()
        head = trial.ordering.peek()
        if head is None or sum(trial.scheduled.values()) == self.limits.max_tokens_per_batch:
            return None
        return self.all[head]


def make_reference(policy: str, limits: EngineLimits) -> ReferenceEngine:
    if policy == "NoPreempt":
        return NoPreemptReference(limits)
    if policy == "TRAILPlus":
        return TRAILReference(limits)
    return ReferenceEngine(limits=limits, ordering=make_ordering(policy))
