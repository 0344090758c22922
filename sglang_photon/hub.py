"""Ask for a hub model's config before a server starts, so that a wrong name is one clear line.

SGLang finds out in the middle of its argument resolution, with a page of traceback.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sglang_photon.errors import UsageError


def check_model(name: str, *, revision: str | None, environ: Mapping[str, str]) -> None:
    """Refuse a model that the Hugging Face hub cannot give us.

    Local paths, remote URLs and ModelScope names are left to SGLang.

    Raises:
        UsageError: no such model, no access to it, or no network and no copy in the cache.
    """
    if Path(name).exists() or "://" in name or environ.get("SGLANG_USE_MODELSCOPE"):
        return
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        hf_hub_download(name, "config.json", revision=revision)
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
    except LocalEntryNotFoundError as error:
        raise _unreachable(name) from error
    except EntryNotFoundError:
        return  # The repository is there; formats without a config.json are SGLang's to judge.
    except (HfHubHTTPError, OSError) as error:
        raise _unreachable(name) from error


def _unreachable(name: str) -> UsageError:
    return UsageError(
        f"The model {name} is not in the local cache and the hub cannot be reached",
        "Check the network, or give a folder; --model-path demo needs neither",
    )
