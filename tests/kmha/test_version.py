from importlib.metadata import PackageNotFoundError

import kmha
from kmha import version
from kmha.version import package_version


def test_a_checkout_that_is_not_installed_has_no_version(monkeypatch):
    assert package_version() == kmha.__version__ != "unknown"

    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(version, "version", missing)
    assert package_version() == "unknown"
