"""Which headgate this is."""

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """The installed version; sources may be run without being installed."""
    try:
        return version("headgate")
    except PackageNotFoundError:
        return "(not installed)"
