from __future__ import annotations

from pathlib import Path

import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import (
    EntryNotFoundError,
    HFValidationError,
    RepositoryNotFoundError,
)

from sglang_photon.errors import UsageError
from sglang_photon.hub import check_model

ANSWER = httpx.Response(404, request=httpx.Request("GET", "https://hub.invalid/x"))


def hub_raises(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> list[str]:
    asked: list[str] = []

    def ask(url: str) -> None:
        asked.append(url)
        if error is not None:
            raise error

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", ask)
    return asked


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (HFValidationError("bad"), "neither a folder nor a model's name"),
        (RepositoryNotFoundError("no", response=ANSWER), "The hub has no model o/m"),
        (httpx.ConnectError("refused"), "the hub cannot be reached"),
        (OSError("no route"), "the hub cannot be reached"),
    ],
)
def test_each_failure_is_one_clear_line(
    error: Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_raises(monkeypatch, error)
    with pytest.raises(UsageError, match=text):
        check_model("o/m", revision=None, environ={})


def test_a_model_without_a_config_is_left_to_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = hub_raises(monkeypatch, EntryNotFoundError("none"))
    check_model("o/m", revision="r", environ={})
    assert asked == [huggingface_hub.hf_hub_url("o/m", "config.json", revision="r")]


def test_a_model_in_the_cache_does_not_ask_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = hub_raises(monkeypatch, OSError("asked"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--o--m" / "snapshots" / "abc").mkdir(parents=True)
    check_model("o/m", revision=None, environ={})
    assert asked == []


def test_folders_urls_and_modelscope_names_do_not_ask_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = hub_raises(monkeypatch, OSError("asked"))
    check_model(str(tmp_path), revision=None, environ={})
    check_model("s3://bucket/m", revision=None, environ={})
    check_model("o/m:Q4_K_M", revision=None, environ={})
    check_model("o/m/sub/file.gguf", revision=None, environ={})
    check_model("o/m", revision=None, environ={"SGLANG_USE_MODELSCOPE": "1"})
    assert asked == []
