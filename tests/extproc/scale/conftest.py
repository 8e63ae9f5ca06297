"""Thousands of sockets in this process, and in the children that inherit its limit."""

import resource

import pytest

NEEDED = 8_000


@pytest.fixture(scope="session", autouse=True)
def file_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard >= NEEDED, f"these tests need {NEEDED} descriptors: ulimit -Hn {hard}"
    if soft != resource.RLIM_INFINITY and soft < NEEDED:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
