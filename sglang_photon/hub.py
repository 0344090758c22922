"""Ask for a hub model's config before a server starts, so that a wrong name is one clear line.

SGLang finds out in the middle of its argument resolution, with a page of traceback.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sglang_photon.config import truth
from sglang_photon.errors import UsageError

CONFIG = "config.json"


def check_model(name: str, *, revision: str | None, environ: Mapping[str, str]) -> None:
    """Refuse a model that the Hugging Face hub cannot give us.

    Local paths, remote URLs, GGUF files and ModelScope names are left to SGLang.

    Raises:
        UsageError: no such model, no access to it, or no network and no copy in the cache.
    """
    if Path(name).exists() or "://" in name or ":" in name or name.endswith(".gguf"):
        return
    if truth(environ, "SGLANG_USE_MODELSCOPE"):
        return
    import httpx
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
    )

    try:
        if _is_cached(name):
            return
        # Not a download: that would try again and again for half a minute without a network.
        get_hf_file_metadata(hf_hub_url(name, CONFIG, revision=revision))
    except HFValidationError as error:
        raise UsageError(
            f"--model-path {name!r} is neither a folder nor a model's name",
            "Give a folder that holds one, a hub name (Qwen/Qwen2.5-VL-3B-Instruct), or demo",
        ) from error
    except GatedRepoError as error:
        raise UsageError(
            f"The model {name} asks for access", "Accept its terms on the hub and set HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise UsageError(
            f"The hub has no model {name}", "Check the name, or set HF_TOKEN if it is private"
        ) from error
    except EntryNotFoundError:
        return  # The repository is there; formats without a config.json are SGLang's to judge.
    except (HfHubHTTPError, httpx.HTTPError, OSError) as error:
        raise UsageError(
            f"The model {name} is not in the local cache and the hub cannot be reached",
            "Check the network, or give a folder; --model-path demo needs neither",
        ) from error


def _is_cached(name: str) -> bool:
    """Whether any revision of the model is in the hub's local cache; what it lacks SGLang says."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = repo_folder_name(repo_id=name, repo_type="model")
    snapshots = Path(constants.HF_HUB_CACHE) / folder / "snapshots"
    return snapshots.is_dir() and any(snapshots.iterdir())
