"""`photon bench batch`: rows per second, memory, survival and device idle of batch jobs.

rate      pictures through the demo model: `photon batch` beside a plain script of asyncio and
          the openai client, at its best concurrency; in turns, on one server
idle      the same job on a simulated device: how long it had nothing to do
memory    a job of many large pictures at a server that answers at once: resident memory
survival  one job, killed with SIGKILL at random moments: results that are lost or doubled
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from sglang_photon.errors import PhotonError, UsageError
from sglang_photon.reference.models import pictures
from sglang_photon.server_process import ServerProcess

PARTS = ("rate", "idle", "memory", "survival")
MODEL = "demo"
PROMPT = "What is in the picture?"
MAX_TOKENS = 24
SIZE = 224
CONCURRENCIES = (8, 16, 32, 64)
WARM_ROWS = 48
LARGE = (640, 480)
LARGE_KINDS = 40
SIM_TOKENS = 64
SIM_ROWS = 16
SIM_STEP_MS = "20,20"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One `photon batch` command.

    Attributes:
        words: of the command.
        output: its result file.
    """

    words: Sequence[str]
    output: Path

    def start(self) -> psutil.Popen:
        """Start it, its chatter thrown away."""
        command = [sys.executable, "-m", "sglang_photon", "batch", *self.words]
        return psutil.Popen([*command, "--output", str(self.output), "--quiet"])

    def run(self) -> float:
        """Seconds from start to end.

        Raises:
            PhotonError: it did not end well.
        """
        began = time.perf_counter()
        code = self.start().wait()
        if code:
            raise PhotonError(f"photon batch ended with {code}", "See what it said above")
        return time.perf_counter() - began

    def results(self) -> list[str]:
        """The custom_ids of the results on disk, torn lines left out."""
        text = self.output.read_bytes() if self.output.exists() else b""
        return [json.loads(line)["custom_id"] for line in text.split(b"\n")[:-1]]


@dataclass(kw_only=True)
class Bench:
    """All parts, in a folder of their own.

    Attributes:
        folder: for pictures, outputs and logs.
        options: the command's.
        found: figures by part.
    """

    folder: Path
    options: argparse.Namespace
    found: dict[str, Any] = field(default_factory=dict)

    def run(self) -> None:
        """Every part that was asked for."""
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "rate": self.rate,
            "idle": self.idle,
            "memory": self.memory,
            "survival": self.survival,
        }
        for name in self.options.parts:
            print(f"\n{name}", flush=True)
            self.found[name] = parts[name]()

    def rate(self) -> dict[str, Any]:
        """Rows per second of both, the same pictures in turns."""
        rounds = self.options.rounds
        groups = [
            self._draw(f"group-{n}", self.options.rows // rounds, seed=n) for n in range(rounds)
        ]
        warm = self._draw("warm", WARM_ROWS, seed=99)
        rates: dict[str, list[float]] = {"plain": [], "photon": []}
        with self._server("rate") as server:
            self._plain(server.url, warm, 8)
            tuned = {n: self._plain(server.url, warm, n) for n in CONCURRENCIES}
            best = max(tuned, key=lambda n: tuned[n])
            shown = ", ".join(f"{n}: {value:.1f}" for n, value in tuned.items())
            print(f"plain script, rows/s by concurrency ({WARM_ROWS} rows each): {shown}")
            for number, group in enumerate(groups):
                order = ["plain", "photon"] if number % 2 else ["photon", "plain"]
                for who in order:
                    value = (
                        self._plain(server.url, group, best)
                        if who == "plain"
                        else self._photon(server.url, group)
                    )
                    rates[who].append(value)
                    print(f"round {number + 1}  {who:7} {value:7.2f} rows/s", flush=True)
        mean = {who: len(found) / sum(1 / one for one in found) for who, found in rates.items()}
        print(f"all      plain {mean['plain']:.2f}, photon {mean['photon']:.2f} rows/s")
        print(f"photon / plain  {mean['photon'] / mean['plain']:.3f}")
        return {
            "rows": sum(len(list(group.iterdir())) for group in groups),
            "plain_concurrency": best,
            "rows_per_s": rates,
            "mean_rows_per_s": mean,
            "ratio": mean["photon"] / mean["plain"],
        }

    def idle(self) -> dict[str, Any]:
        """Share of a job in which a simulated device had nothing to do."""
        group = self._draw("simulated", self.options.idle_rows, seed=7)
        plugin, state = self.folder / "plugin", self.folder / "device.json"
        info = plugin / "photon_sim-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: photon_sim\nVersion: 1.0\n")
        entry = "[sglang.srt.plugins]\nphoton_sim = sglang_photon.upstream.sim_server:load\n"
        (info / "entry_points.txt").write_text(entry)
        path = os.pathsep.join([str(plugin), os.environ.get("PYTHONPATH", "")])
        environ = {
            "PYTHONPATH": path,
            "PHOTON_SIM_STATE": str(state),
            "PHOTON_SIM_STEP_MS": SIM_STEP_MS,
        }
        flags = ["--photon-loop", "photon", "--max-running-requests", str(SIM_ROWS)]
        with self._server("idle", *flags, environ=environ) as server:
            source = self.folder / "simulated.jsonl"
            source.write_text("".join(_sim_row(one.name) + "\n" for one in sorted(group.iterdir())))
            words = ["run", str(source), "--media-root", str(group), "--url", server.url]
            job = Job(words=words, output=self.folder / "simulated.out.jsonl")
            watched = _watch_device(job, state)
        print(
            f"device: {SIM_STEP_MS} ms per decode, prefill; {SIM_ROWS} rows; "
            f"answers of {SIM_TOKENS} tokens"
        )
        print(
            f"idle {watched['idle_pct']:.2f} % of {watched['wall_s']:.1f} s between the first and "
            f"last result, {watched['rows_per_s']:.2f} rows/s"
        )
        return watched

    def memory(self) -> dict[str, Any]:
        """Resident memory of a job of many large pictures."""
        media = self.folder / "large"
        media.mkdir()
        rng = np.random.default_rng(0)
        for number in range(LARGE_KINDS):
            noise = rng.integers(0, 256, (LARGE[1], LARGE[0], 3), dtype=np.uint8)
            Image.fromarray(noise).save(media / f"{number}.png")
        size = (media / "0.png").stat().st_size
        source = self.folder / "large.jsonl"
        with source.open("w") as file:
            for number in range(self.options.memory_rows):
                file.write(_row(f"row-{number}", f"{number % LARGE_KINDS}.png") + "\n")
        launcher = (sys.executable, "-m", "sglang_photon.bench.echo_server")
        log = self.folder / "echo.log"
        with ServerProcess([], log=log, launcher=launcher) as server:
            words = ["run", str(source), "--media-root", str(media), "--url", server.url]
            job = Job(words=words, output=self.folder / "large.out.jsonl")
            began = time.perf_counter()
            process = job.start()
            samples = _resident(process)
            wall = time.perf_counter() - began
        peak, half = max(samples), samples[len(samples) // 2 :]
        print(f"{self.options.memory_rows} rows of {size / 1e3:.0f} kB pictures in {wall:.0f} s")
        print(
            f"resident: peak {peak / 2**20:.0f} MiB; in the second half "
            f"{min(half) / 2**20:.0f} to {max(half) / 2**20:.0f} MiB"
        )
        return {
            "rows": self.options.memory_rows,
            "results": len(set(job.results())),
            "picture_bytes": size,
            "wall_s": wall,
            "peak_mib": peak / 2**20,
            "second_half_mib": [min(half) / 2**20, max(half) / 2**20],
        }

    def survival(self) -> dict[str, Any]:
        """One job, killed many times."""
        rows, kills = self.options.rows, self.options.kills
        group = self._draw("killed", rows, seed=11)
        chance = random.Random(self.options.seed)
        table: list[dict[str, Any]] = []
        with self._server("survival") as server:
            words = ["images", str(group), "--prompt", PROMPT, "--max-tokens", str(MAX_TOKENS)]
            words += ["--temperature", "0", "--url", server.url]
            job = Job(words=words, output=self.folder / "killed.jsonl")
            before: list[str] = []
            for number in range(1, kills + 1):
                process = job.start()
                try:
                    wanted = len(before) + chance.randint(1, max(1, rows // (kills + 1)))
                    _wait(lambda: len(job.results()) >= wanted, process)  # noqa: B023
                    time.sleep(chance.uniform(0, 0.2))
                finally:
                    process.kill()
                    process.wait()
                tail = len(job.output.read_bytes().rpartition(b"\n")[2])
                now = job.results()
                kept = now[: len(before)] == before
                table.append(
                    {"kill": number, "results": len(now), "torn_bytes": tail, "kept": kept}
                )
                print(f"kill {number:2}  {len(now):5} results on disk, {tail} torn bytes")
                before = now
            job.run()
        ids = job.results()
        unique = len(set(ids))
        lost, doubled = rows - unique, len(ids) - unique
        print(
            f"{rows} rows, {kills} kills: {unique} unique results, lost {lost}, doubled {doubled}"
        )
        return {
            "rows": rows,
            "kills": table,
            "unique": unique,
            "lost": lost,
            "doubled": doubled,
            "all_kept": all(one["kept"] for one in table),
        }

    def _draw(self, name: str, count: int, *, seed: int) -> Path:
        place = self.folder / name
        place.mkdir()
        examples = pictures.heldout(count, seed=seed, tasks=("describe",), size=SIZE)
        for number, example in enumerate(examples):
            example.pictures[0].save(place / f"{number:05}.png")
        return place

    def _server(
        self, name: str, *flags: str, environ: dict[str, str] | None = None
    ) -> ServerProcess:
        # Both must compute every picture: what one has asked must not be there for the other.
        arguments = ["--model-path", MODEL, "--disable-radix-cache", *flags]
        log = self.folder / f"{name}.log"
        return ServerProcess(
            arguments, log=log, environ={"OMP_NUM_THREADS": "1", **(environ or {})}
        )

    def _plain(self, url: str, group: Path, at_once: int) -> float:
        output = self.folder / "plain.jsonl"
        words = [str(group), url, str(output), str(at_once), PROMPT, str(MAX_TOKENS)]
        command = [sys.executable, "-m", "sglang_photon.bench.plain_batch", *words]
        _flush(url)
        began = time.perf_counter()
        subprocess.run(command, check=True)
        return len(output.read_text().splitlines()) / (time.perf_counter() - began)

    def _photon(self, url: str, group: Path) -> float:
        words = ["images", str(group), "--prompt", PROMPT, "--max-tokens", str(MAX_TOKENS)]
        words += ["--temperature", "0", "--url", url]
        job = Job(words=words, output=self.folder / f"{group.name}.jsonl")
        _flush(url)
        seconds = job.run()
        return len(set(job.results())) / seconds


def _flush(url: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(f"{url}/flush_cache", method="POST")):
        pass


def _row(custom_id: str, picture: str, **more: Any) -> str:
    content = [
        {"type": "image_url", "image_url": {"url": picture}},
        {"type": "text", "text": PROMPT},
    ]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": MAX_TOKENS, **more}
    row = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(row)


def _sim_row(picture: str) -> str:
    return _row(picture, picture, max_tokens=SIM_TOKENS, ignore_eos=True)


def _watch_device(job: Job, state: Path) -> dict[str, Any]:
    """Run a job; the device's idle time between its first result and its last."""
    process = job.start()
    _wait(lambda: bool(job.results()), process)
    first, rows = json.loads(state.read_text()), len(job.results())
    last, last_rows = first, rows
    while process.poll() is None:
        last, last_rows = json.loads(state.read_text()), len(job.results())
        time.sleep(0.05)
    wall = last["now"] - first["now"]
    return {
        "wall_s": wall,
        "idle_pct": (last["idle"] - first["idle"]) / wall * 100,
        "rows_per_s": (last_rows - rows) / wall,
        "exit_code": process.wait(),
    }


def _resident(process: psutil.Popen) -> list[int]:
    """Resident bytes of a process, ten times a second until it ends."""
    samples = []
    while process.poll() is None:
        try:
            samples.append(process.memory_info().rss)
        except psutil.Error:
            break
        time.sleep(0.1)
    if process.wait():
        raise PhotonError(f"photon batch ended with {process.returncode}", "See what it said above")
    return [one for one in samples if one]


def _wait(condition: Callable[[], bool], process: psutil.Popen) -> None:
    while not condition():
        if process.poll() is not None:
            raise PhotonError(f"photon batch ended early with {process.returncode}", "See above")
        time.sleep(0.01)


def main(argv: Sequence[str]) -> int:
    """Run the benchmark and print its tables; the exit code is 1 where a result was lost."""
    parser = argparse.ArgumentParser(
        prog="photon bench batch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all")
    parser.add_argument("--rows", type=int, default=2000, help="pictures of rate and survival")
    parser.add_argument("--rounds", type=int, default=4, help="turns of rate")
    parser.add_argument("--idle-rows", type=int, default=300)
    parser.add_argument("--memory-rows", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(list(argv))
    options.parts = options.parts or list(PARTS)
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        raise UsageError(f"There is no part {unknown[0]!r}", f"Choose: {', '.join(PARTS)}")
    folder = Path(tempfile.mkdtemp(prefix="photon-bench-"))
    try:
        bench = Bench(folder=folder, options=options)
        bench.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json is not None:
        options.json.write_text(json.dumps(bench.found, indent=1) + "\n")
    survived = bench.found.get("survival", {"lost": 0, "doubled": 0, "all_kept": True})
    return int(survived["lost"] or survived["doubled"] or not survived["all_kept"])
