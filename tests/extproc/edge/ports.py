"""Ports for servers that start later: below the range that outgoing connections are given theirs from."""

import contextlib
import random
import socket

_LOWEST, _HIGHEST = 12_000, 32_000
_random = random.SystemRandom()


def free_ports(count: int) -> int:
    """The first of `count` consecutive ports that nobody listens on now."""
    while True:
        first = _random.randrange(_LOWEST, _HIGHEST)
        with contextlib.suppress(OSError), contextlib.ExitStack() as taken:
            for port in range(first, first + count):
                taken.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


def free_port() -> int:
    return free_ports(1)
