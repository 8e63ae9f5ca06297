"""Which release this is."""

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str:
    """The version of this package, `unknown` where it is not installed."""
    try:
        return version("halffull-extproc")
    except PackageNotFoundError:
        return "unknown"
