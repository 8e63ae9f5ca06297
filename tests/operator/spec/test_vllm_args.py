"""Flags that belong to the operator, in every spelling that vLLM's parser takes."""

import pytest

from halffull_operator.vllm_args import (
    OWNED,
    OWNED_BY_PLUGIN,
    asynchronous,
    flag_of,
    refused_args,
    refused_env,
    value_of,
)


@pytest.mark.parametrize(
    ("argument", "flag"),
    [
        ("--host", "host"),
        ("--host=::", "host"),
        ("--tensor_parallel_size", "tensor-parallel-size"),
        ("--max_model_len=8", "max-model-len"),
        ("--tensor-parallel", "tensor-parallel-size"),
        ("--served", "served-model-name"),
        ("--no-enable-ssl-refresh", "enable-ssl-refresh"),
        ("-tp", "tensor-parallel-size"),
        ("-tp=2", "tensor-parallel-size"),
        ("-dp", "data-parallel-size"),
        ("-n", "nnodes"),
        ("--additional-config.larry.alpha", "additional-config"),
        ("--scheduler_cls=x", "scheduler-cls"),
        ("--hf-token=abc", "hf-token"),
    ],
)
def test_is_refused(argument: str, flag: str) -> None:
    ((index, message),) = refused_args(["--seed", argument, "1"], stock=False)
    assert index == 1
    assert message.startswith(f"--{flag} belongs to the operator: ")


@pytest.mark.parametrize(
    "argument",
    [
        "--model-impl=vllm",
        "--seed",
        "--trust-remote-code",
        "--data",  # ambiguous to argparse, and no prefix of a flag that could be meant
        "-O3",
        "-1",
        "-q",
        "-dcp",
        "-ep",
        "host",
        '{"host": 1}',
        "--max-num-seqs=8",
        "--enable-log-requests",
        "--no-async-scheduling",
    ],
)
def test_is_let_through(argument: str) -> None:
    if argument == "--data":
        assert list(refused_args([argument], stock=False)), "it could only mean flags of the operator's"
    else:
        assert not list(refused_args([argument], stock=False))


def test_stock_leaves_the_scheduler_to_the_person() -> None:
    args = ["--scheduler-cls=mine.Scheduler", "--additional-config={}"]
    assert len(list(refused_args(args, stock=False))) == 2
    assert not list(refused_args(args, stock=True))


@pytest.mark.parametrize("flag", [*OWNED, *OWNED_BY_PLUGIN])
def test_every_message_says_what_to_do(flag: str) -> None:
    ((_, message),) = refused_args([f"--{flag}"], stock=False)
    assert len(message.partition(": ")[2]) > 10


def test_environment() -> None:
    assert [index for index, _ in refused_env(["A", "HF_HOME", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"])] == [1, 2]
    assert list(refused_env(["VLLM_PLUGINS"]))
    assert not list(refused_env(["VLLM_PLUGINS"], stock=True))


@pytest.mark.parametrize(
    ("args", "value"),
    [
        ([], None),
        (["--load-format", "dummy"], "dummy"),
        (["--load_format=dummy"], "dummy"),
        (["--load-format=a", "--load-format", "b"], "b"),
        (["--load-format"], ""),
        (["--load-format", "--seed"], ""),
        (["x", "load-format"], None),
    ],
)
def test_value_of(args: list[str], value: str | None) -> None:
    assert value_of(args, "load-format") == value


@pytest.mark.parametrize(
    ("args", "cpu", "pipeline", "expected"),
    [
        ([], False, 1, True),
        ([], True, 1, False),
        (["--async-scheduling"], True, 1, False),
        (["--no-async-scheduling"], False, 1, False),
        (["--no_async_scheduling"], False, 1, False),
        ([], False, 2, False),
        (["--async-scheduling"], False, 2, True),
    ],
)
def test_asynchronous(args: list[str], *, cpu: bool, pipeline: int, expected: bool) -> None:
    assert asynchronous(args, cpu=cpu, pipeline=pipeline) is expected


def test_flag_of() -> None:
    assert [flag_of(text) for text in ("--a_b=c_d", "-x", "x", "-", "--", "-5", "")] == [
        "a-b",
        "x",
        None,
        None,
        None,
        None,
        None,
    ]
