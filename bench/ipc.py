"""`photon bench ipc`: what it costs to find a tensor's pool open, or to open it.

    off    the pool is opened for every tensor, and the stream is waited for
    dict   SGLang's dict of open pools
    cache  our cache: leased, bounded, closed when nobody reads

Each tensor is taken as SGLang's code takes it. Without a GPU the driver is a stand-in whose open
and whose wait take a given time; then the host's share is real, the driver's is not.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sglang_photon.errors import UsageError

WAYS = ("off", "dict", "cache")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way of finding pools open.

    Attributes:
        way: which, of `WAYS`.
        tensors: taken.
        opens: of pools.
        hits: pools found open.
        us_per_tensor: median over the repetitions.
        us_first: of the first tensor, which opens.
    """

    way: str
    tensors: int
    opens: int
    hits: int
    us_per_tensor: float
    us_first: float


def main(argv: Sequence[str]) -> int:
    """Run the benchmark, print its table."""
    options = _options(argv)
    from sglang_photon.upstream.bench_ipc import driver_name, measure

    driver = driver_name(open_us=options.open_us, wait_us=options.wait_us)
    rows = []
    for way in WAYS:
        found = [
            measure(
                way=way,
                tensors=options.tensors,
                pools=options.pools,
                open_us=options.open_us,
                wait_us=options.wait_us,
            )
            for _ in range(options.reps)
        ]
        rows.append(
            Row(
                way=way,
                tensors=options.tensors,
                opens=int(found[0]["opens"]),
                hits=int(found[0]["hits"]),
                us_per_tensor=statistics.median(one["us_per_tensor"] for one in found),
                us_first=statistics.median(one["us_first"] for one in found),
            )
        )
    print(f"driver: {driver}")
    print("way     tensors  opens   hits  us/tensor  first us")
    for row in rows:
        print(
            f"{row.way:6} {row.tensors:8} {row.opens:6} {row.hits:6} {row.us_per_tensor:10.1f} "
            f"{row.us_first:9.1f}"
        )
    if options.json is not None:
        report = {"driver": driver, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="photon bench ipc", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--tensors", type=int, default=2000)
    parser.add_argument("--pools", type=int, default=2, help="as many as tokenizer workers")
    parser.add_argument("--open-us", type=float, default=200.0, help="stand-in: an open")
    parser.add_argument("--wait-us", type=float, default=50.0, help="stand-in: a stream's end")
    parser.add_argument("--reps", type=int, default=3, help="repetitions; medians are shown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(list(argv))
    if min(options.tensors, options.pools, options.reps) < 1:
        raise UsageError("No tensors, pools or repetitions", "Give positive numbers")
    return options
