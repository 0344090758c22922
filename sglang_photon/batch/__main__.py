"""`python -m sglang_photon.batch`: the same as `photon batch`."""

from __future__ import annotations

import sys

from sglang_photon.batch.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
