from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_photon.errors import UsageError
from sglang_photon.reference.models import names, random_spec
from sglang_photon.reference.models.integrity import write_manifest
from sglang_photon.reference.models.names import ResolvedModel, resolve

LIST = "demo, demo:vlm, demo:chat, demo:random"


def refusal(name: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        resolve(name)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.fixture
def embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "vlm"
    folder.mkdir()
    (folder / "config.json").write_text('{"torch_dtype": "bfloat16"}')
    (folder / "model.safetensors").write_bytes(bytes(1000))
    write_manifest(folder)
    monkeypatch.setattr(names, "VLM_FOLDER", folder)
    return folder


@pytest.mark.parametrize("name", ["demo", "demo:vlm"])
def test_the_embedded_model_is_a_folder_of_the_package(embedded: Path, name: str) -> None:
    model = resolve(name)
    assert model == ResolvedModel(
        path=str(embedded),
        name="demo:vlm",
        is_demo=True,
        flags=(("--dtype", "bfloat16"),),
        gpu_flags=(("--attention-backend", "triton"), ("--mm-attention-backend", "sdpa")),
        cpu_environment=(("OMP_NUM_THREADS", "1"),),
    )


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda f: (f / "model.safetensors").write_bytes(b"x"), "model.safetensors has 1 bytes"),
        (lambda f: (f / "model.safetensors").write_bytes(b"x" * 1000), "content of model.safe"),
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors cannot be read"),
        (lambda f: (f / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda f: (f / "manifest.json").write_text("[]"), "manifest.json is unreadable"),
        (lambda f: (f / "manifest.json").write_text("{"), "manifest.json is unreadable"),
    ],
)
def test_a_damaged_embedded_model_is_refused(
    embedded: Path, damage: Callable[[Path], object], text: str
) -> None:
    damage(embedded)
    error = refusal("demo")
    assert text in error.problem
    assert "Install this package again" in error.remedy


@pytest.mark.parametrize("name", ["demo:xyz", "demo:", "demo:vlm,hidden=3", "demo:randomly"])
def test_an_unknown_demo_name_lists_the_known_ones(name: str) -> None:
    error = refusal(name)
    assert name in error.problem
    assert LIST in error.remedy


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen2.5-VL-3B-Instruct",
        "gpt2",
        "demos",
        "s3://bucket/a/b/c",
        "redis://host:1/m",
        "owner/repo:Q4_K_M",
        "owner/repo/sub/file.gguf",
    ],
)
def test_hub_ids_and_urls_pass_through(name: str) -> None:
    assert resolve(name) == ResolvedModel(path=name, name=name)


def test_local_models_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    empty = tmp_path / "empty"
    empty.mkdir()
    for spelling in ("empty", "./empty", "~/empty", str(empty)):
        error = refusal(spelling)
        assert spelling in error.problem
        assert "config.json" in error.problem
    (empty / "config.json").write_text("{}")
    assert resolve("empty").path == "empty"
    assert resolve("~/empty").path == str(empty)
    assert not resolve("./empty").is_demo


@pytest.mark.parametrize(
    "name", ["./nothing", "/nothing/here", "~/nothing", "../no", "a/b/c", "a b"]
)
def test_a_missing_folder_is_not_taken_for_a_hub_id(name: str) -> None:
    error = refusal(name)
    assert error.problem == f"there is no model at {name}"
    assert LIST in error.remedy


def test_a_single_file_is_a_model_only_as_gguf(tmp_path: Path) -> None:
    gguf, weights = tmp_path / "m.gguf", tmp_path / "model.safetensors"
    gguf.touch()
    weights.touch()
    assert resolve(str(gguf)).path == str(gguf)
    assert "is a file, not a model folder" in refusal(str(weights)).problem


def test_an_empty_model_path_is_refused() -> None:
    assert refusal("").problem == "the model path is empty"


@pytest.mark.parametrize(
    ("name", "problem", "remedy"),
    [
        ("demo:random:qwen3", "no shape 'qwen3'", "qwen2.5-vl, qwen2"),
        ("demo:random:colour=1", "no key 'colour'", "hidden, layers, heads, kv_heads, ffn, vocab"),
        ("demo:random:layers=two", "layers='two'", "a whole number from 1"),
        ("demo:random:layers=0", "layers='0'", "a whole number from 1"),
        ("demo:random:seed=-1", "seed='-1'", "a whole number from 0"),
        ("demo:random:hidden=", "hidden=''", "a whole number"),
        ("demo:random:dtype=int4", "no dtype 'int4'", "float32, bfloat16, float16"),
        ("demo:random:layers=1,layers=2", "layers twice", "Keep one"),
        ("demo:random:qwen2,qwen2.5-vl", "shape twice", "Keep one"),
        ("demo:random:qwen2,vision_layers=1", "no vision tower", "demo:random:qwen2.5-vl"),
        ("demo:random:hidden=100,heads=3", "heads=3 does not divide", "per head"),
        ("demo:random:hidden=24", "hidden/heads=24", "per head"),
        ("demo:random:heads=4,kv_heads=3", "kv_heads=3 does not divide 4", "divide heads"),
        ("demo:random:vocab=1000", "vocab=1000 is less than 1024", "vocab from 1024"),
        ("demo:random:vision_hidden=100", "vision_hidden=100", "multiple of 64"),
    ],
)
def test_a_wrong_random_model_is_refused(name: str, problem: str, remedy: str) -> None:
    error = refusal(name)
    assert problem in error.problem
    assert name in error.problem
    assert remedy in error.remedy


def test_spellings_of_one_random_model_share_a_name_and_a_key() -> None:
    spellings = (
        "demo:random",
        "demo:random:",
        "demo:random:qwen2.5-vl",
        "demo:random:heads=4, hidden=256,qwen2.5-vl,kv_heads=2",
        "demo:random,layers=2",
    )
    specs = [random_spec.parse(name) for name in spellings]
    assert {spec.name for spec in specs} == {"demo:random:qwen2.5-vl"}
    assert len({spec.key for spec in specs}) == 1
    other = random_spec.parse("demo:random:qwen2,hidden=128,seed=7")
    assert random_spec.parse(other.name) == other
    assert (other.heads, other.kv_heads, other.ffn) == (2, 1, 256)
    assert other.key not in {spec.key for spec in specs}


def test_a_random_model_says_which_dtype_it_wants(tmp_path: Path) -> None:
    said: list[str] = []
    small = "demo:random:qwen2,hidden=64,layers=1,vocab=1024"
    auto = resolve(small, cache_dir=tmp_path, progress=said.append)
    assert (auto.flags, auto.cpu_flags) == ((), (("--dtype", "float32"),))
    named = resolve(f"{small},dtype=float16", cache_dir=tmp_path, progress=said.append)
    assert (named.flags, named.cpu_flags) == ((("--dtype", "float16"),), ())
    assert json.loads((Path(named.path) / "config.json").read_text())["torch_dtype"] == "float16"
    assert Path(auto.path).parent == tmp_path
    assert said == []


def test_naming_a_model_imports_no_heavy_library() -> None:
    code = (
        "import sys; from sglang_photon.reference.models import names; names.resolve('a/b');"
        "print([m for m in ('torch', 'sglang', 'transformers', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
