"""What the picker learns from the engines' own counters: prompt sizes, lengths, β, TTFT.

All of it has a prior for a fresh start, forgets, and takes no wild values: one image or a burst of n > 1 bends nothing.
"""

from bisect import bisect_left, insort
from collections import deque

PRIOR_BYTES_PER_TOKEN = 4.0
PRIOR_PROMPT_TOKENS = 1000.0
PRIOR_GENERATED_TOKENS = 200.0
PRIOR_TTFT = 0.5


class SlidingMedian:
    """Median of the last `size` values."""

    __slots__ = ("_ordered", "_size", "_values")

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: deque[float] = deque()
        self._ordered: list[float] = []

    def add(self, value: float) -> None:
        """Add a value; the oldest leaves when there are more than `size`."""
        self._values.append(value)
        insort(self._ordered, value)
        if len(self._values) > self._size:
            del self._ordered[bisect_left(self._ordered, self._values.popleft())]

    def __len__(self) -> int:
        return len(self._ordered)

    @property
    def value(self) -> float | None:
        """The median, the mean of the middle two for an even number; None without a value."""
        ordered = self._ordered
        if not ordered:
            return None
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


class SizeWindow:
    """What ended at one engine since its last window closed, own requests on one side, the engine's on the other.

    Bodies that no engine could take as text, such as one with an image in it, are kept apart and count only in a window
    without a text: else windows with several finishes would nearly all hold an image as soon as a tenth of the requests
    have one, and the median would be an image's.
    """

    __slots__ = (
        "other_bytes",
        "other_estimates",
        "others",
        "prompt_tokens",
        "requests",
        "text_bytes",
        "text_estimates",
        "texts",
    )

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """A new window starts."""
        self.texts = self.text_bytes = self.others = self.other_bytes = 0
        self.text_estimates = self.other_estimates = 0.0
        self.prompt_tokens = self.requests = 0.0


class PromptSizes:
    """Prompt tokens from a request's Content-Length (Halffull design notes, "Prompt size").

    Bytes per token is the median over short windows of one engine each: mean bytes of own requests that ended ÷ mean
    prompt tokens of the requests that the engine finished. A window with one finish is an exact pair. The median makes
    it hold with images (2 MB for 900 tokens), n > 1, and windows that hold requests of other pickers.
    """

    __slots__ = ("_errors", "_ratios", "bytes_per_token", "longest")

    WINDOWS = 100
    PRIOR_WINDOWS = 5
    """How many windows the prior stands for; they leave like any other."""
    ERROR_FROM = 20
    """Windows before the error is told. The prior outvotes the first five, and made the estimates of some more that
    were under way: what those missed by says nothing about what was learned. Of 20 they are the smaller part."""

    def __init__(self) -> None:
        self._ratios = SlidingMedian(self.WINDOWS)
        for _ in range(self.PRIOR_WINDOWS):
            self._ratios.add(PRIOR_BYTES_PER_TOKEN)
        self._errors = SlidingMedian(self.WINDOWS)
        self.bytes_per_token = PRIOR_BYTES_PER_TOKEN
        self.longest = float("inf")
        """The longest prompt that an engine of the pool takes, tokens."""

    def estimate(self, body_bytes: int | None, *, mean: float) -> float:
        """Estimated prompt tokens of a request: a whole number from 1 to the longest; the mean for a chunked one."""
        tokens = mean if body_bytes is None else body_bytes / self.bytes_per_token
        return float(round(max(1.0, min(tokens, self.longest))))

    def ended(self, window: "SizeWindow", *, body_bytes: int, estimate: float) -> None:
        """An own request of this window ended; `estimate` tokens had been charged for it."""
        if body_bytes / self.bytes_per_token <= self.longest:
            window.texts += 1
            window.text_bytes += body_bytes
            window.text_estimates += estimate
        else:
            window.others += 1
            window.other_bytes += body_bytes
            window.other_estimates += estimate

    def finished(self, window: "SizeWindow", *, prompt_tokens: float, requests: float) -> None:
        """The window's engine finished requests; the window closes when both sides have something in it."""
        window.prompt_tokens += prompt_tokens
        window.requests += requests
        count = window.texts or window.others
        if not count or window.requests < 1:
            return
        if window.texts:
            size, estimate = window.text_bytes / count, window.text_estimates / count
        else:
            size, estimate = window.other_bytes / count, window.other_estimates / count
        tokens = window.prompt_tokens / window.requests
        window.reset()
        if size <= 0 or tokens <= 0:
            return
        self._errors.add(abs(estimate - tokens) / tokens)
        self._ratios.add(size / tokens)
        self.bytes_per_token = self._ratios.value or PRIOR_BYTES_PER_TOKEN

    @property
    def error(self) -> float | None:
        """Median over the last windows of |estimated − true| ÷ true mean prompt tokens; None before enough of them."""
        return self._errors.value if len(self._errors) >= self.ERROR_FROM else None


class Mean:
    """A mean that forgets, with a prior: Σ amounts ÷ Σ counts, each count weakening what came before."""

    __slots__ = ("_amount", "_count", "_forget", "value")

    def __init__(self, prior: float, *, weight: float, memory: float) -> None:
        """`weight`: counts that the prior stands for; `memory`: counts after which a value weighs 1/e."""
        self._amount = prior * weight
        self._count = weight
        self._forget = memory
        self.value = prior

    def add(self, amount: float, count: float) -> None:
        """Take in `count` (above 0) events of `amount` in all."""
        # 1/(1 + c/m) forgets like e^(−c/m) for small c, costs less, and never forgets all at once.
        keep = self._forget / (self._forget + count)
        self._amount = self._amount * keep + amount
        self._count = self._count * keep + count
        self.value = self._amount / self._count


class Lengths:
    """μ_in, μ_out and TTFT of the pool, from cumulative counters of finished requests."""

    __slots__ = ("generated", "prompt", "ttft")

    PRIOR_REQUESTS = 10.0
    MEMORY = 2000.0

    def __init__(self) -> None:
        self.prompt = Mean(PRIOR_PROMPT_TOKENS, weight=self.PRIOR_REQUESTS, memory=self.MEMORY)
        """μ_in, tokens per request."""
        self.generated = Mean(PRIOR_GENERATED_TOKENS, weight=self.PRIOR_REQUESTS, memory=self.MEMORY)
        """μ_out, tokens per request, all its sequences together."""
        self.ttft = Mean(PRIOR_TTFT, weight=self.PRIOR_REQUESTS, memory=self.MEMORY)
        """Seconds per first token."""

    @property
    def beta(self) -> float:
        """β = (μ_in + μ_out)/μ_out (arXiv 2410.17840); μ_out counts at least 1 token."""
        generated = max(1.0, self.generated.value)
        return (self.prompt.value + generated) / generated

    @property
    def kv_per_request(self) -> float:
        """KV cache that an unfinished request holds on average, tokens: μ_in + μ_out/2."""
        return self.prompt.value + self.generated.value / 2
