"""The plugin under SGLang's own front doors: its launcher, its controller of ranks, its engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from sglang_photon import reference
from sglang_photon.reference.models import integrity, names
from tests.server.asking import Ask, answer
from tests.server.plugins import USURPER, install_plugin
from tests.server.servers import MARK, ONE_THREAD, Running, marked_processes

LIMIT_S = 150
CPU = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1", **ONE_THREAD}
CPU_FLAGS = ("--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32")
SGLANG_SERVE = (str(Path(sys.executable).with_name("sglang")), "serve")
HELLO = Ask(text="Hello.", options={"max_tokens": 4})
ENGINE = """\
import json, sys
import sglang

if __name__ == "__main__":
    engine = sglang.Engine(model_path=sys.argv[1], device="cpu", dtype="float32",
        attention_backend="torch_native", max_total_tokens=4096, log_level="warning")
    info = engine.get_server_info()
    text = engine.generate("Hello.", {"temperature": 0, "max_new_tokens": 4})["text"]
    segment = engine.tokenizer_manager.load_snapshot_reader.path
    engine.shutdown()
    print(json.dumps({"photon": info.get("photon"), "text": text, "segment": segment}))
"""


@pytest.fixture(scope="module")
def folder() -> str:
    """A small text model."""
    return names.resolve("demo:random:qwen2").path


def with_plugin(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a user who runs SGLang itself, with the plugin switched on."""
    variables = {**CPU, "SGLANG_PHOTON": "1", **(environ or {})}
    return {**variables, **reference.child_environment({**os.environ, **variables})}


def run_to_its_end(command: Sequence[str], environ: Mapping[str, str]) -> tuple[int, str]:
    """Run a command that must leave no process; its exit code and what it printed."""
    mark = uuid.uuid4().hex
    # SGLang leaves files for its sockets.
    with tempfile.TemporaryDirectory(prefix="pt-") as temporary:
        ended = subprocess.run(
            command,
            env={**os.environ, **environ, MARK: mark, "TMPDIR": temporary},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
    assert marked_processes(mark) == ()
    return ended.returncode, ended.stdout


def sglang_serve(folder: str, environ: Mapping[str, str]) -> tuple[int, str]:
    """Run `sglang serve` to its end."""
    arguments = ["--model-path", folder, *CPU_FLAGS, "--max-total-tokens", "1024"]
    return run_to_its_end([*SGLANG_SERVE, *arguments], environ)


def test_sglang_serve_runs_our_scheduler(folder: str, tmp_path: Path) -> None:
    arguments = ["--model-path", folder, *CPU_FLAGS, "--max-total-tokens", "4096"]
    with Running(
        arguments=arguments, folder=tmp_path, environ=with_plugin(), launcher=SGLANG_SERVE
    ) as running:
        assert running.get("/server_info")["photon"]["loop"] == "photon"
        assert answer(running.client, HELLO).completion_tokens == 4
        ending = running.stop()
    # What SGLang's own launcher leaves beside its exit code is SGLang's affair.
    assert (ending.processes, ending.ports) == ((), ())


def test_another_plugin_that_takes_the_scheduler_ends_the_server(
    folder: str, tmp_path: Path
) -> None:
    other = install_plugin(tmp_path / "plugin", name="usurper", source=USURPER)
    code, printed = sglang_serve(folder, with_plugin(other))
    assert code != 0
    assert "Photon's scheduler is not in place in this scheduler process" in printed
    assert "set SGLANG_PLUGINS=photon" in printed


def test_the_plugin_and_a_stock_loop_at_once_are_refused(folder: str) -> None:
    code, printed = sglang_serve(folder, with_plugin({"SGLANG_PHOTON_LOOP": "blocking"}))
    assert code == 2
    line = "SGLANG_PHOTON=1 asks for Photon, SGLANG_PHOTON_LOOP=blocking for stock SGLang"
    assert line in printed
    assert "Traceback" not in printed


def test_two_ranks_and_two_tokenizers(tmp_path: Path) -> None:
    """From a damaged cache, which is made again."""
    cache = tmp_path / "cache"
    model = Path(names.resolve("demo:random:qwen2", cache_dir=cache).path)
    weights = model / "model.safetensors"
    with weights.open("r+b") as file:
        file.truncate(weights.stat().st_size // 2)
    arguments = ["--model-path", "demo:random:qwen2", "--dp", "2", "--tokenizer-worker-num", "2"]
    with Running(
        arguments=arguments, folder=tmp_path, environ={"SGLANG_PHOTON_CACHE": str(cache)}
    ) as running:
        assert "damaged" in running.log
        assert integrity.fault(model) is None
        assert running.log.count("sglang-photon 0.") == 2
        assert len(running.schedulers()) == 2
        texts = {answer(running.client, HELLO).texts for _ in range(4)}
        assert len(texts) == 1
        ending = running.stop()
    assert (ending.exit_code, ending.processes, ending.ports) == (0, (), ())


def test_the_engine_in_a_program(folder: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(ENGINE)
    code, printed = run_to_its_end([sys.executable, str(script), folder], with_plugin())
    assert code == 0, printed
    told = json.loads(next(line for line in printed.splitlines() if line.startswith('{"photon"')))
    # SGLang leaves it, under its own launchers too.
    Path(told["segment"]).unlink(missing_ok=True)
    assert told["photon"]["loop"] == "photon"
    assert told["text"]
