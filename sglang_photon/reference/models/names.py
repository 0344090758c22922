"""From what stands after `--model-path` to a folder that SGLang can serve.

    demo, demo:vlm         the vision-language model inside this package
    demo:chat              SmolLM2-135M-Instruct, converted once              (see chat)
    demo:random[:...]      random weights of any size, made once              (see random_spec)
    ./x, /x, ~/x, x        a folder on this machine; checked before SGLang sees it
    anything else          a hub id: passed through untouched

A folder that is really called `demo` is reached as `./demo`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from sglang_photon.errors import UsageError
from sglang_photon.reference.models import chat, random_spec
from sglang_photon.reference.models.cache import ModelCache, Progress, to_stderr
from sglang_photon.reference.models.integrity import fault

NAMES = {
    "demo": "the same as demo:vlm",
    "demo:vlm": "a small vision-language model inside this package",
    "demo:chat": "SmolLM2-135M-Instruct, a small chat model, converted on first use",
    "demo:random": "random weights, also demo:random:qwen2 and demo:random:SHAPE,key=value,...",
}
"""The demo models, for help texts."""

VLM_FOLDER = Path(__file__).parent / "vlm"

Flags = tuple[tuple[str, str], ...]
"""Flags of SGLang's launcher with their values."""
ONE_THREAD: Flags = (("OMP_NUM_THREADS", "1"),)
"""Threads gain nothing in models this small, and on busy cores every operation waits for all."""
ANY_HEAD_SIZE: Flags = (("--attention-backend", "triton"), ("--mm-attention-backend", "sdpa"))
"""The default kernels on a GPU are built for heads of 64 and more; the demo models' are smaller."""

_HUB_ID = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")
_HUB_GGUF = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+|(/[\w.-]+)*\.gguf)")
"""What SGLang reads as a GGUF file on the hub: owner/name:QUANT or owner/name/path/file.gguf."""
_CONFIGS = ("config.json", "params.json", "model_index.json")
"""One of these makes a folder a model: transformers', Mistral's and diffusers' own."""


@dataclass(frozen=True)
class ResolvedModel:
    """What to serve.

    Attributes:
        path: for SGLang's `--model-path`: a folder, or a hub id or URL as it was given.
        name: what people call it: `demo:vlm`, `demo:random:qwen2,hidden=128`, or `path`.
        is_demo: one of `NAMES`, so a folder that was verified byte for byte.
        flags: what the model needs, on any machine, where the user does not say otherwise.
        cpu_flags: the same, on the CPU engine only.
        gpu_flags: the same, on a GPU only.
        cpu_environment: variables to set on the CPU engine where the user has not.
    """

    path: str
    name: str
    is_demo: bool = False
    flags: Flags = ()
    cpu_flags: Flags = ()
    gpu_flags: Flags = ()
    cpu_environment: Flags = ()


def resolve(
    model_path: str, *, cache_dir: Path | None = None, progress: Progress = to_stderr
) -> ResolvedModel:
    """Find, or make, the model of this name.

    Args:
        model_path: what the user gave as `--model-path`.
        cache_dir: where made models are kept; None: `$SGLANG_PHOTON_CACHE` or the XDG cache.
        progress: told, line by line, what takes time.

    Raises:
        UsageError: an unknown demo name or spelling, a damaged model, a folder that holds none, a
            cache folder that cannot be written, or a package that cannot be fetched.
    """
    if not model_path.strip():
        raise UsageError("the model path is empty", f"Name a folder, a hub id, or {_demo_list()}")
    head = model_path.partition(",")[0]
    if head == random_spec.PREFIX or head.startswith(f"{random_spec.PREFIX}:"):
        return _random(model_path, ModelCache(root=cache_dir, progress=progress))
    if model_path == "demo:chat":
        return _chat(ModelCache(root=cache_dir, progress=progress), progress)
    if model_path in ("demo", "demo:vlm"):
        return _vlm()
    if model_path.startswith("demo:"):
        raise UsageError(f"there is no demo model {model_path!r}", f"Choose one of {_demo_list()}")
    return _given(model_path)


def _random(name: str, cache: ModelCache) -> ResolvedModel:
    spec = random_spec.parse(name)

    def build(target: Path, _scratch: Path) -> None:
        from sglang_photon.reference.models import random_weights

        random_weights.build(spec, target)

    folder = cache.folder(spec.key, label=spec.name, build=build)
    if spec.dtype == "auto":
        return _demo(folder, spec.name, cpu_flags=(("--dtype", "float32"),))
    return _demo(folder, spec.name, flags=(("--dtype", spec.dtype),))


def _chat(cache: ModelCache, progress: Progress) -> ResolvedModel:
    def build(target: Path, scratch: Path) -> None:
        chat.build(target, scratch, progress=progress)

    folder = cache.folder(chat.KEY, label="demo:chat", build=build)
    return _demo(folder, "demo:chat", cpu_environment=())


def _vlm() -> ResolvedModel:
    if damage := fault(VLM_FOLDER):
        raise UsageError(
            f"the embedded demo model in {VLM_FOLDER} is damaged: {damage}",
            "Install this package again, or restore that folder from the repository",
        )
    config = json.loads((VLM_FOLDER / "config.json").read_text(encoding="utf-8"))
    dtype = config.get("dtype") or config.get("torch_dtype")
    # Left to itself SGLang serves float32 weights as float16, which CPUs compute slowly.
    return _demo(VLM_FOLDER, "demo:vlm", flags=(("--dtype", dtype),) if dtype else ())


def _demo(
    folder: Path,
    name: str,
    *,
    flags: Flags = (),
    cpu_flags: Flags = (),
    cpu_environment: Flags = ONE_THREAD,
) -> ResolvedModel:
    return ResolvedModel(
        path=str(folder),
        name=name,
        is_demo=True,
        flags=flags,
        cpu_flags=cpu_flags,
        gpu_flags=ANY_HEAD_SIZE,
        cpu_environment=cpu_environment,
    )


def _given(model_path: str) -> ResolvedModel:
    if "://" in model_path:
        return ResolvedModel(path=model_path, name=model_path)
    path = Path(model_path).expanduser()
    if path.is_dir():
        if not any((path / config).is_file() for config in _CONFIGS):
            raise UsageError(
                f"the folder {model_path} holds no model: it has no config.json",
                "Name a folder with config.json, weights and tokenizer (a hub cache keeps them in "
                "snapshots/), or a demo model: " + _demo_list(),
            )
        return ResolvedModel(path=str(path), name=model_path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise UsageError(
                f"{model_path} is a file, not a model folder",
                "Name the folder that holds config.json, or a .gguf file",
            )
        return ResolvedModel(path=str(path), name=model_path)
    if _HUB_GGUF.fullmatch(model_path):
        return ResolvedModel(path=model_path, name=model_path)
    if model_path.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(model_path):
        raise UsageError(
            f"there is no model at {model_path}",
            f"Check the path, or use a hub id (owner/name) or a demo model: {_demo_list()}",
        )
    return ResolvedModel(path=model_path, name=model_path)


def _demo_list() -> str:
    return ", ".join(NAMES)
