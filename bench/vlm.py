"""`photon bench vlm`: many image chats at once, on a simulated H100 or B200.

64 clients chat about pictures of 1024 x 1024 pixels, about 110 tokens per answer; as one is
answered, the next asks. The scheduler is the real one; the device takes the time that the roofline
of Qwen2.5-VL-3B on that GPU gives for each step, from what is in it:

    decode   max(bytes of weights and of all rows' KV cache / bandwidth, FLOP / peak)
    prefill  max(bytes of weights and of written KV cache / bandwidth,
                 FLOP of the language model and of the vision tower / peak)

That is a floor: a real GPU is slower, which gives the host more time. Messages of the tokenizer
process are recorded and replayed, since that process on few cores delivers a fraction of what such
a GPU takes; `--http` shows the fraction.

    tok/s    of all chats          ttft   ms from question to first token, median
    tpot     ms between tokens of one answer, median      idle   % of the time, the device
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sglang_photon.errors import UsageError
from sglang_photon.profiling.roofline import gpus
from sglang_photon.profiling.roofline.architecture import read_model
from sglang_photon.profiling.roofline.ceiling import Machine
from sglang_photon.profiling.roofline.config_file import text_section
from sglang_photon.profiling.roofline.formats import read_formats
from sglang_photon.profiling.roofline.work import decode_work, prefill_work

LOOPS = ("blocking", "sglang", "photon")
PROFILES = {"h100": "H100-SXM", "b200": "B200"}
GOAL_GAIN, GOAL_IDLE_PCT = 35.0, 2.0
GOAL_PROFILE = "b200"

QWEN_3B: dict[str, Any] = {
    "model_type": "qwen2_5_vl",
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "dtype": "bfloat16",
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "vision_config": {
        "model_type": "qwen2_5_vl",
        "depth": 32,
        "hidden_size": 1280,
        "num_heads": 16,
        "intermediate_size": 3420,
        "out_hidden_size": 2048,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}
"""Sizes of Qwen2.5-VL-3B-Instruct, from its config.json."""

Figures = Mapping[str, float]


class SimulatedGpu:
    """Seconds of a step, by the roofline.

    Args:
        profile: a key of `PROFILES`.
        config: of the model.
    """

    def __init__(self, profile: str, config: dict[str, Any] = QWEN_3B) -> None:
        gpu = gpus.find_gpu(PROFILES[profile])
        assert gpu is not None, "the table has every profile's GPU"
        self._machine = Machine(gpu=gpu)
        self._model = read_model(config)
        self._formats = read_formats(
            config,
            text_section(config)[0],
            dtype=self._model.dtype,
            layers=len(self._model.layers),
        )

    def decode(self, rows: int, context: int) -> float:
        """Of a decode step of `rows` rows with about `context` cached tokens each."""
        return self._decode(rows, context // 32 * 32)

    def prefill(self, tokens: int, image_tokens: int) -> float:
        """Of a prefill of `tokens` tokens, `image_tokens` of them from pictures."""
        return self._prefill(tokens, image_tokens)

    @functools.cache  # noqa: B019 - one object per run
    def _decode(self, rows: int, context: int) -> float:
        work = decode_work(self._model, self._formats, batch=rows, context=max(1, context))
        return self._machine.floor(work).seconds

    @functools.cache  # noqa: B019
    def _prefill(self, tokens: int, image_tokens: int) -> float:
        work = prefill_work(self._model, self._formats, tokens=tokens, image_tokens=image_tokens)
        return self._machine.floor(work).seconds


def median_figures(repetitions: Sequence[Figures]) -> dict[str, float]:
    """Field by field."""
    return {name: statistics.median(one[name] for one in repetitions) for name in repetitions[0]}


def gain(loops: Mapping[str, Figures]) -> float:
    """Percent of throughput that Photon adds to the blocking loop."""
    return (loops["photon"]["tok_s"] / loops["blocking"]["tok_s"] - 1) * 100


def main(argv: Sequence[str]) -> int:
    """Run the benchmark, print its tables."""
    options = _options(argv)
    from sglang_photon.upstream.bench_vlm import VlmBench

    measured: dict[tuple[str, str], list[Figures]] = {}
    for repetition in range(options.reps):
        for profile in options.profile:
            for loop in LOOPS:
                _progress(f"repetition {repetition + 1}: {profile}, {loop}")
                with VlmBench.open(
                    loop=loop, at_once=options.chats, gpu=SimulatedGpu(profile)
                ) as bench:
                    figures = bench.measure(requests=options.requests)
                measured.setdefault((profile, loop), []).append(figures)
    _progress("")
    profiles = {
        profile: {loop: median_figures(measured[profile, loop]) for loop in LOOPS}
        for profile in options.profile
    }
    _print(profiles)
    report: dict[str, object] = {"profiles": profiles}
    if options.http:
        report["http_requests_s"] = _over_http()
        print(f"\nend to end over HTTP on this machine's CPU: {report['http_requests_s']:.1f} "
              "requests/s (the tokenizer process and the demo model; no target)")  # fmt: skip
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.plot is not None:
        options.plot.write_text(draw(profiles))
    return 0


def draw(profiles: Mapping[str, Mapping[str, Figures]]) -> str:
    """Throughput and idle time as bars: an SVG without scripts."""
    width, bar, left, gap = 640, 22, 150, 60
    fastest = max(figures["tok_s"] for loops in profiles.values() for figures in loops.values())
    lines, top = [], 20
    for profile, loops in profiles.items():
        lines.append(f'<text x="10" y="{top + 14}" font-weight="bold">{profile}</text>')
        for loop, figures in loops.items():
            top += bar + 6
            length = (width - left - 190) * figures["tok_s"] / fastest
            lines.append(f'<text x="10" y="{top + 15}">{loop}</text>')
            lines.append(
                f'<rect x="{left}" y="{top}" width="{length:.0f}" height="{bar}" class="{loop}"/>'
            )
            lines.append(
                f'<text x="{left + length + 8:.0f}" y="{top + 15}">{figures["tok_s"]:.0f} tok/s, '
                f"idle {figures['idle_pct']:.1f} %</text>"
            )
        top += gap
    style = (
        "svg{background:#fff;color:#1a1a1a;font:13px system-ui,sans-serif}text{fill:currentColor}"
        ".blocking{fill:#999}.sglang{fill:#b3541e}.photon{fill:#0a6ebd}"
        "@media(prefers-color-scheme:dark){svg{background:#16181d;color:#e6e6e6}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}">'
        f"<style>{style}</style>{''.join(lines)}</svg>\n"
    )


def _print(profiles: Mapping[str, Mapping[str, Figures]]) -> None:
    print("profile  loop         tok/s  ttft p50  tpot p50  idle %")
    for profile, loops in profiles.items():
        for loop, figures in loops.items():
            print(
                f"{profile:8} {loop:9} {figures['tok_s']:8.0f} {figures['ttft_p50_ms']:9.1f} "
                f"{figures['tpot_p50_ms']:9.2f} {figures['idle_pct']:7.1f}"
            )
        goals = (
            f" (goal: at least +{GOAL_GAIN:g} %), idle {loops['photon']['idle_pct']:.1f} % "
            f"(goal: at most {GOAL_IDLE_PCT:g} %)"
        )
        print(
            f"{profile}: blocking -> photon {gain(loops):+.0f} %"
            f"{goals if profile == GOAL_PROFILE else ''}"
        )


def _over_http() -> float:
    from sglang_photon.bench.http_chats import requests_per_second

    return requests_per_second()


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="photon bench vlm", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--profile", nargs="+", choices=list(PROFILES), default=list(PROFILES))
    parser.add_argument("--chats", type=int, default=64, help="at once")
    parser.add_argument("--requests", type=int, default=320, help="chats, one after another")
    parser.add_argument("--reps", type=int, default=3, help="repetitions; medians are shown")
    parser.add_argument("--http", action="store_true", help="also a real server on this CPU")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the throughputs")
    options = parser.parse_args(list(argv))
    if options.chats < 1 or options.reps < 1 or options.requests < 3 * options.chats:
        raise UsageError(
            "No chats, or too few to fill the middle", "Give --requests at least 3 times --chats"
        )
    return options


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
