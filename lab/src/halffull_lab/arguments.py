"""Types of command-line options: what cannot be meant is refused before anything starts."""

import argparse
import math
from urllib.parse import urlsplit


def port(text: str) -> int:
    """A TCP port; 0 takes a free one where that makes sense."""
    number = int(text) if text.isdecimal() else -1
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port, allowed: 0 to 65535")
    return number


def positive(text: str) -> float:
    """A finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text!r} does not fit, allowed: a number above 0")
    return number


def not_negative(text: str) -> float:
    """A finite number from 0 on."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} does not fit, allowed: a number from 0")
    return number


def positive_int(text: str) -> int:
    """A whole number from 1 on."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} does not fit, allowed: a whole number from 1")
    return number


def http_url(text: str) -> str:
    """An http or https URL with a host."""
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is no URL such as http://10.0.0.1:8000")
    return text
