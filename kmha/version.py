"""The version of kmha."""

from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """The installed version; "unknown" in a checkout that is not installed."""
    try:
        return version("kmha")
    except PackageNotFoundError:
        return "unknown"
