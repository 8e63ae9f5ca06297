"""A server that does not answer: in the same words for every command, and not by a client's own doing."""

import os
from typing import Final

KEEP_ALIVE: Final = 2.0
"""s that a client keeps an idle connection: below uvicorn's 5 s, so that no request meets a closing socket."""


def unanswered(url: str, error: Exception) -> str:
    """Such as `http://127.0.0.1:9 does not answer: Connection refused; is it running?`.

    Args:
        url: what was asked.
        error: why no answer came: of aiohttp, of the operating system, or a timeout.
    """
    cause = getattr(error, "os_error", error)  # aiohttp's own text names its defaults for TLS, even for plain HTTP
    number = getattr(cause, "errno", None) or 0
    # Negative numbers are the resolver's, which has words of its own for them.
    why = os.strerror(number) if number > 0 else getattr(cause, "strerror", None) or str(cause) or type(error).__name__
    return f"{url} does not answer: {why}; is it running?"
