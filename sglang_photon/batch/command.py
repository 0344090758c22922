"""`photon batch`: from the command line to an exit code."""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Sequence

from sglang_photon.batch.options import parse
from sglang_photon.errors import PhotonError, report

INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:
    """Run a job, and return its exit code."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        options = parse(argv)
        # It leaves the blocks that stop servers.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        from sglang_photon.batch import assembly, memory

        memory.return_large_blocks()
        # What Pillow thinks of a picture is no news: it is taken, or its row says why not.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        return assembly.dry_run(options) if options.dry_run else assembly.run(options)
    except PhotonError as error:
        return report(error)
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on where this one ended.", file=sys.stderr)
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
