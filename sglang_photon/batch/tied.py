"""A server that ends with the process that started it, even if that is killed.

    python -m sglang_photon.batch.tied PARENT ARGUMENTS...

The kernel sends SIGTERM to this process when the thread that started it ends. That survives the
change into the launcher.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import NoReturn

PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> NoReturn:
    """Become the launcher, unless the parent is gone already."""
    parent, *arguments = argv
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit(1)
    command = [sys.executable, "-m", "sglang_photon.launch_server", *arguments]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main(sys.argv[1:])
