"""Ports for servers that start later.

They lie below the range from which the kernel serves port 0 and outgoing connections (Linux: from 32768 up): a port
found with port 0 is often gone again before its server starts, to any connection of any process on the machine.
"""

import contextlib
import random
import socket

_LOWEST, _HIGHEST = 10_000, 32_000
_random = random.SystemRandom()


def free_ports(count: int, *, host: str = "127.0.0.1") -> int:
    """The first of `count` neighbouring ports that nobody listens on now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        first = _random.randrange(_LOWEST, _HIGHEST - count)
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for port in range(first, first + count):
                held.enter_context(socket.socket(family)).bind((host, port))
            return first


def free_port(*, host: str = "127.0.0.1") -> int:
    """A port that nobody listens on now."""
    return free_ports(1, host=host)
