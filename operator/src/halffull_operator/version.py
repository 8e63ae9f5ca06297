"""Which release this is."""

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str:
    """The version of this package, `unknown` where it is not installed."""
    try:
        return version("halffull-operator")
    except PackageNotFoundError:
        return "unknown"


def user_agent() -> str:
    """What the API server's audit log calls us."""
    return f"halffull-operator/{own_version()}"
