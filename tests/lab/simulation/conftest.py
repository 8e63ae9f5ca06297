"""Runs in this process, where a test looks at what comes out and not at the processes."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from halffull_lab import plan
from halffull_lab.simulation import campaign


class Here:
    """A pool of no processes."""

    def submit(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments, **options))
        except Exception as error:  # noqa: BLE001 (as an executor has it)
            future.set_exception(error)
        return future

    def map(self, call: Callable[[Any], Any], values: list[Any]) -> Iterator[Any]:
        return iter([call(value) for value in values])


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run their cases in this process."""

    @contextlib.contextmanager
    def processes(workers: int) -> Iterator[Here]:
        assert workers > 0
        yield Here()

    monkeypatch.setattr(campaign, "processes", processes)
    monkeypatch.setattr(plan, "processes", processes)
