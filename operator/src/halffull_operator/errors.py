"""What goes wrong at the edges.

Exception
├── InputError            a person can put it right: configuration, access to the cluster; exit code 2
└── ApiError              the API server did not do what was asked
"""


class InputError(Exception):
    """Something given to the operator cannot be used. The message is one line that says what, where and why."""


class ApiError(Exception):
    """The API server refused, failed or did not answer.

    `reason` is Kubernetes' own (Conflict, Invalid, …), or one that a person can act on: QuotaExceeded,
    NamespaceTerminating, CacheResizeUnsupported, NameTaken, BeingDeleted, Unreachable, Timeout.
    """

    def __init__(
        self, reason: str, message: str, *, status: int = 0, retry_after: float | None = None, retryable: bool = False
    ) -> None:
        """Keep what is known.

        Args:
            reason: one word.
            message: the server's sentence.
            status: HTTP status; 0: there was no answer.
            retry_after: seconds that the server asks to wait.
            retryable: the same call may succeed soon, with nothing changed by a person.
        """
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.status = status
        self.retry_after = retry_after
        self.retryable = retryable
        self.progress = False
        """Something was done before that need not be done again; set by who knows."""

    @property
    def unreachable(self) -> bool:
        """Nothing else will work now either."""
        return self.status in (0, 429) or self.status >= 500
