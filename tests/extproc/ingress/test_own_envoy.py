"""docs/examples/envoy.yaml, picker.yaml and endpoints.yaml, run as they stand but for their ports."""

import asyncio
import difflib
import re
import subprocess
from pathlib import Path

import pytest

from tests.extproc.ingress.running import DESTINATION, ENVOY, EXAMPLES, running

PAGE = EXAMPLES.parent / "own-ingress.md"


@pytest.mark.parametrize("example", ["envoy-p2c.yaml", "envoy.yaml"])
def test_envoy_accepts_the_example(example: str) -> None:
    done = subprocess.run(
        [ENVOY, "--mode", "validate", "-c", EXAMPLES / example], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr.lower()


def test_without_the_marked_blocks_it_is_the_p2c_example() -> None:
    blocks = re.compile(r"^ *# >>> halffull.*?# <<< halffull\n", re.DOTALL | re.MULTILINE)
    unmarked = blocks.sub("", (EXAMPLES / "envoy.yaml").read_text())
    p2c = (EXAMPLES / "envoy-p2c.yaml").read_text().replace("      lb_policy: LEAST_REQUEST\n", "")
    assert _settings(unmarked) == _settings(p2c)
    assert len(blocks.findall((EXAMPLES / "envoy.yaml").read_text())) == 4


def test_the_page_shows_the_real_difference() -> None:
    before, after = (_settings((EXAMPLES / name).read_text()) for name in ("envoy-p2c.yaml", "envoy.yaml"))
    real = list(difflib.unified_diff(before, after, "envoy-p2c.yaml", "envoy.yaml", n=1, lineterm=""))
    shown = re.search(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert shown is not None
    assert shown[1].splitlines() == real


def test_the_page_names_every_example_and_no_other() -> None:
    named = set(re.findall(r"\(examples/([a-z0-9.-]+)\)", PAGE.read_text()))
    assert named == {path.name for path in EXAMPLES.iterdir()}


async def test_picks_are_obeyed_and_clients_do_not_choose(tmp_path: Path) -> None:
    async with running(tmp_path) as stack:
        stack.a.queued_tokens = 500_000
        await stack.only(stack.b)
        await stack.only(stack.b, headers={DESTINATION: stack.address(stack.a)})
        stack.a.queued_tokens, stack.b.queued_tokens = 0, 500_000
        await stack.only(stack.a)


async def test_a_pick_stays_open_until_the_answer_has_ended(tmp_path: Path) -> None:
    async with running(tmp_path) as stack:
        await stack.check_that_a_pick_stays_open_until_the_answer_has_ended()


async def test_an_engine_that_fails_is_left_alone(tmp_path: Path) -> None:
    """Its load report is the best; only the access log tells that it answers nothing but errors."""
    async with running(tmp_path) as stack:
        stack.b.queued_tokens = 500_000
        await stack.only(stack.a)
        stack.a.failing = True
        await stack.only(stack.b)


async def test_with_the_picker_killed_p2c_goes_on_without_a_failure(tmp_path: Path) -> None:
    async with running(tmp_path) as stack:
        stack.a.queued_tokens = 500_000
        await stack.only(stack.b)
        async with asyncio.TaskGroup() as group:
            during = [group.create_task(stack.ask()) for _ in range(20)]
            group.create_task(stack.kill_picker())
        assert {task.result()[0] for task in during} == {200}
        # A client that names an engine gets no more of it than by P2C.
        for headers in ({}, {DESTINATION: stack.address(stack.a)}):
            answers = await stack.ask_many(40, headers=headers)
            assert set(answers) == {(200, "a"), (200, "b")}, answers


async def test_before_the_picker_comes_it_is_p2c_and_only_paths_of_the_api_are_let_in(tmp_path: Path) -> None:
    async with running(tmp_path, picker=False) as stack:
        answers = await stack.ask_many(40)
        assert set(answers) == {(200, "a"), (200, "b")}, answers
        for path in ("/v1/models", "/v1/chat/completions", "/health"):
            assert (await stack.ask(path=path))[0] == 200, path
        for path in ("/", "/v1beta", "/metrics", "/healthy", "/health/..%2fsleep", "/v1/%2e%2e/metrics"):
            assert await stack.ask(path=path) == (404, ""), path
        async with stack.started_picker(tmp_path):
            stack.b.queued_tokens = 500_000
            await stack.only(stack.a)


def _settings(text: str) -> list[str]:
    """Lines but for the file's head, which says what the file is."""
    lines = text.splitlines()
    return lines[next(number for number, line in enumerate(lines) if not line.startswith("#")) :]
