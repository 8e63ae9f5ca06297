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
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendered: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)]
        if console
        else [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
    )
    stream = cast("TextIO", _Unbreakable(sys.stderr))
    structlog.configure(
        processors=[*shared, *rendered],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
    )
    # kopf logs by the standard way; its warnings look like our lines.
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendered],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
