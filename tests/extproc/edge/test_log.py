import io
import json
from collections.abc import Iterator

import pytest
import structlog

from halffull_extproc import log


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_json_is_one_object_a_line_with_level_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure(form="json", level="info")
    logger = structlog.get_logger()
    logger.debug("not this")
    logger.info("two\nlines", endpoint="10.0.0.1:80")
    (line,) = capsys.readouterr().err.splitlines()
    said = json.loads(line)
    assert (said["event"], said["endpoint"], said["level"]) == ("two\nlines", "10.0.0.1:80", "info")
    assert said["timestamp"].endswith("Z")


def test_an_exception_is_in_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure(form="json", level="info")
    try:
        raise ValueError("why")  # noqa: TRY301 (an exception to log)
    except ValueError:
        structlog.get_logger().exception("failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert "why" in line


def test_console_is_for_people_and_without_colours_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log.configure(form="console", level="warning")
    structlog.get_logger().warning("look", endpoint="x")
    said = capsys.readouterr().err
    assert "look" in said
    assert "\x1b" not in said


class Gone(io.StringIO):
    def write(self, _: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("stream", [Gone(), io.StringIO()])
def test_a_log_that_nobody_reads_any_more_breaks_nothing(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    log.configure(form="json", level="info")
    if not isinstance(stream, Gone):
        stream.close()
    structlog.get_logger().error("into the void")
