"""Structured logs on standard error: JSON lines, or coloured text for people at a terminal."""

import contextlib
import logging
import sys
from typing import Final, TextIO, cast

import structlog

LEVELS: Final = ("debug", "info", "warning", "error")


class _Unbreakable:
    """A stream whose reader may go away: a line is lost then, and never the work that it was about."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return self._stream.write(text)
        return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def configure(*, form: str, level: str) -> None:
    """Set up logging of the process.

    Args:
        form: `json`, `console`, or `auto`: console where standard error is a terminal.
        level: one of LEVELS.
    """
    console = form == "console" or (form == "auto" and sys.stderr.isatty())
    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if console:
        plain = structlog.dev.plain_traceback  # not rich's boxes, which come where rich happens to be installed
        processors.append(structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain))
    else:
        processors += [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Unbreakable(sys.stderr))),
    )
    # Libraries that log by the standard way have nothing to say below a warning.
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
