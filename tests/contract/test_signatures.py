"""Fails when SGLang moves under us."""

from __future__ import annotations

import pytest

from sglang_photon.errors import PhotonError
from sglang_photon.upstream import version
from sglang_photon.upstream.signatures import ALL, check_signatures, mismatches


def test_every_seam_is_as_expected() -> None:
    assert mismatches(ALL) == []


@pytest.mark.parametrize("path", sorted(ALL))
def test_a_changed_seam_is_named(path: str) -> None:
    found = mismatches({path: (*ALL[path], "added")})
    assert len(found) == 1
    assert path in found[0]


def test_a_missing_seam_is_named_and_stops_the_start() -> None:
    with pytest.raises(PhotonError, match=r"sglang\.srt\.plugins:no_such is missing"):
        check_signatures({"sglang.srt.plugins:no_such": ()})


def test_the_installed_sglang_passes_the_gate() -> None:
    assert version.check_version() == version.WANTED


@pytest.mark.parametrize("found", ["0.5.22", "0.6.0", None])
def test_another_sglang_is_refused_with_both_versions(
    found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "installed_version", lambda: found)
    with pytest.raises(PhotonError, match=version.WANTED):
        version.check_version()


def test_another_sglang_may_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "installed_version", lambda: "0.6.0")
    assert version.check_version(allow_other=True) == "0.6.0"
