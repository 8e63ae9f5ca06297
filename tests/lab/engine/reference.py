"""vLLM V1's synchronous scheduling, written request by request: the slow truth that the fast engine must equal."""

from dataclasses import dataclass

from halffull_lab.engine_requests import EngineLimits
from halffull_larry.ordering import Ordering


@dataclass(eq=False)
class Sequence:
    request_id: str
    arrival: float
    prompt: int
    output: int
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    decoding: bool = False

    @property
    def tokens(self) -> int:
        return self.prompt + self.generated


class ReferenceEngine:
    def __init__(self, *, limits: EngineLimits, ordering: Ordering) -> None:
        self.limits = limits
        self.ordering = ordering
        self.all: dict[str, Sequence] = {}
        self.running: list[Sequence] = []
        self.scheduled: dict[Sequence, int] = {}
        self.free = limits.total_blocks
        self.steps = self.computed = 0

    def add(self, request_id: str, prompt: int, output: int, arrival: float) -> None:
        self.all[request_id] = Sequence(request_id, arrival, prompt, output)
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
                victim.computed = 0
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
            victim.decoding = False
            self.ordering.add(victim.request_id, arrival=victim.arrival, tokens=victim.tokens, preempted=True)
        return len(preempted), decodes, context

    def schedule_waiting(self) -> int:
        budget = self.limits.max_tokens_per_batch - sum(self.scheduled.values())
        admitted = 0
        while budget and len(self.running) < self.limits.max_num_seqs:
            request_id = self.ordering.peek()
            if request_id is None:
                break
            sequence = self.all[request_id]
            if -(-sequence.tokens // self.limits.block_size) + self.still_needed() > self.free:
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
