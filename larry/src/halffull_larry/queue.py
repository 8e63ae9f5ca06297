"""vLLM's waiting queue, in the order of `ordering`. Reads like its neighbours in vllm.v1.core.sched.request_queue."""

from collections.abc import Callable, Iterable, Iterator

from vllm.v1.core.sched.request_queue import FCFSRequestQueue, RequestQueue
from vllm.v1.request import Request, RequestStatus

from halffull_larry.ordering import Ordering

__all__ = ["OrderedQueue", "SkippedQueue"]


class OrderedQueue(RequestQueue):
    """Waiting requests, best first; replaces `Scheduler.waiting`.

    vLLM admits from the head while the queue is true, so `bool` means "has a head that may be admitted now", and is
    where the stop rule lives; `len` counts.

    What is popped and put back within a step keeps its place. What could never fit is kept aside: counted, abortable,
    never the head.
    """

    def __init__(
        self,
        ordering: Ordering,
        *,
        arrived: Callable[[Request], int],
        fits_now: Callable[[Request, list[Request]], bool],
        fits_ever: Callable[[Request], bool],
        has_room: Callable[[], bool],
        use_priority: bool,
    ) -> None:
        """A queue around an order.

        Args:
            ordering: empty.
            arrived: called once when a request enters; the tokens that its admission would have to compute.
            fits_now: whether the head's whole prefill fits, given what was popped since it was asked last.
            fits_ever: whether it would in an empty engine.
            has_room: whether another request may run at all; where not, vLLM stops by itself, whoever is the head.
            use_priority: take the requests' priorities into account.
        """
        self._ordering = ordering
        self._arrived = arrived
        self._fits_now = fits_now
        self._fits_ever = fits_ever
        self._has_room = has_room
        self._use_priority = use_priority
        self._requests: dict[str, Request] = {}  # in the order of arrival; what a step pops leaves when it ends
        self._popped: dict[str, Request] = {}
        self._just_popped: list[Request] = []
        self._admissible: bool | None = None  # of the head, once asked
        self.aside: dict[str, Request] = {}
        """What could never fit."""

    def start_step(self, now: float, *, queue_len: int) -> None:
        """A scheduling step begins at `now`, of the clock of the arrivals."""
        self._ordering.start_step(now, queue_len=queue_len)
        self._popped.clear()
        self._just_popped.clear()
        self._admissible = None

    def end_step(self) -> tuple[list[Request], int]:
        """What the step took from here, and how many of those arrived after the one that has stood here longest."""
        taken = list(self._popped.values())
        self._popped.clear()
        for request in taken:
            del self._requests[request.request_id]
        if not taken or not self._requests:
            return taken, 0
        oldest = next(iter(self._requests.values())).arrival_time
        return taken, sum(request.arrival_time > oldest for request in taken)

    def progress(self, *, computed_tokens: int, busy_seconds: float) -> None:
        """Pass the engine's cumulative counters on to the order."""
        self._ordering.progress(computed_tokens=computed_tokens, busy_seconds=busy_seconds)

    def add_request(self, request: Request) -> None:
        """Enqueue a request: a new one, or one that was preempted."""
        if not self._fits_ever(request):
            self.aside[request.request_id] = request
            return
        self._admissible = None
        self._requests[request.request_id] = request
        self._ordering.add(
            request.request_id,
            arrival=request.arrival_time,
            tokens=self._arrived(request),
            priority=request.priority if self._use_priority else 0,
            preempted=request.status == RequestStatus.PREEMPTED,
        )

    def peek_request(self) -> Request:
        """The head."""
        request_id = self._ordering.peek()
        if request_id is None:
            raise IndexError("peek from an empty queue")
        return self._requests[request_id]

    def pop_request(self) -> Request:
        """Take the head."""
        request_id = self._ordering.pop()
        self._admissible = None
        self._popped[request_id] = request = self._requests[request_id]
        self._just_popped.append(request)
        return request

    def prepend_request(self, request: Request) -> None:
        """Put back what this step popped; enqueue what was preempted."""
        if self._popped.pop(request.request_id, None) is None:
            self.add_request(request)
            return
        self._admissible = None
        self._ordering.put_back(request.request_id)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Put each back, or enqueue it; the order among them is this queue's business."""
        for request in requests:
            self.prepend_request(request)

    def remove_request(self, request: Request) -> None:
        """Remove one that will not be admitted.

        Raises:
            ValueError: it does not wait.
        """
        if request.request_id not in self._requests and request.request_id not in self.aside:
            raise ValueError(f"request {request.request_id!r} does not wait")
        self.remove_requests((request,))

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Remove those of them that wait here."""
        for request in requests:
            if self.aside.pop(request.request_id, None) is None and self._requests.pop(request.request_id, None):
                self._ordering.remove(request.request_id)
                self._admissible = None

    def __bool__(self) -> bool:
        """Whether there is a head and it may be admitted now."""
        if self._admissible is None:
            self._admissible = len(self._ordering) > 0 and (not self._has_room() or self._has_admissible_head())
        return self._admissible

    def _has_admissible_head(self) -> bool:
        while (request_id := self._ordering.peek()) is not None:
            request = self._requests[request_id]
            if self._fits_ever(request):
                fits = self._fits_now(request, self._just_popped)
                self._just_popped.clear()
                return fits
            # It grew while it waited: a preempted request's last token comes after it with async scheduling.
            self._ordering.remove(request_id)
            self.aside[request_id] = self._requests.pop(request_id)
        return False

    def __len__(self) -> int:
        """Every request that waits."""
        return len(self._requests) - len(self._popped) + len(self.aside)

    def __iter__(self) -> Iterator[Request]:
        """All of them, not in the order of admission, which changes with every step."""
        waiting = [request for request in self._requests.values() if request.request_id not in self._popped]
        yield from (*waiting, *self.aside.values())


class SkippedQueue(FCFSRequestQueue):
    """Replaces `Scheduler.skipped_waiting`, which vLLM 0.18 to 0.30 serve before `waiting`.

    Requests that were skipped go back to their place in the order. Those that hold KV blocks stay here, first come
    first served and before all others, as from 0.31 on: behind a head that does not fit they could wait for ever for
    the memory that they hold themselves.
    """

    def __init__(self, waiting: OrderedQueue) -> None:
        super().__init__()
        self._ordered = waiting

    def add_request(self, request: Request) -> None:
        """Enqueue a request that is blocked."""
        if holds_blocks(request):
            super().add_request(request)
        else:
            self._ordered.prepend_request(request)

    def prepend_request(self, request: Request) -> None:
        """Put back one that was skipped."""
        if holds_blocks(request):
            super().prepend_request(request)
        else:
            self._ordered.prepend_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Put back those that were skipped."""
        for request in requests:
            self.prepend_request(request)


def holds_blocks(request: Request) -> bool:
    """Whether a waiting request has KV blocks already (remote KV arriving, a paused streaming session)."""
    return bool(request.num_computed_tokens > 0 or request.status == RequestStatus.WAITING_FOR_REMOTE_KVS)
