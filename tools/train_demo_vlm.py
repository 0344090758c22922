"""Trains the demo vision-language model and measures it.

Run ``python tools/train_demo_vlm.py --output DIR`` to train, ``--evaluate DIR`` to measure only.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.demo_vlm.evaluation import accuracy_table
from tools.demo_vlm.export import export
from tools.demo_vlm.training import train


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--output", type=Path, metavar="DIR", help="train, write and measure")
    action.add_argument("--evaluate", type=Path, metavar="DIR", help="only measure this folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--minutes",
        type=float,
        default=28.0,
        help="on a slow machine, end training after this many minutes (default: %(default)s)",
    )
    options = parser.parse_args()
    if options.output is not None:
        started = time.monotonic()
        export(*train(options.seed, options.minutes), options.output)
        print(f"trained in {(time.monotonic() - started) / 60:.1f} minutes")
    print(accuracy_table(options.output or options.evaluate))


if __name__ == "__main__":
    main()
