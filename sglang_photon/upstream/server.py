"""Start SGLang's own server with the arguments that SGLang's own launcher takes."""

from __future__ import annotations

import argparse
import contextlib
import os

from sglang.launch_server import run_server
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import ServerArgs, prepare_server_args
from sglang.srt.utils import kill_process_tree

from sglang_photon.config import add_flags
from sglang_photon.upstream import leftovers
from sglang_photon.upstream.signatures import LAUNCHER, check_signatures


def serve(argv: list[str]) -> None:
    """Run a server until it is told to stop; its processes end with it.

    Args:
        argv: SGLang's arguments. Photon's settings are in the environment by now, where the child
            processes read them.

    Raises:
        PhotonError: SGLang's internals have moved.
    """
    check_signatures(LAUNCHER)
    load_plugins()
    # Ctrl-C is a way to stop a server: uvicorn shuts down first, then raises it again.
    with leftovers.removed(), contextlib.suppress(KeyboardInterrupt):
        try:
            run_server(prepare_server_args(argv))
        finally:
            kill_process_tree(os.getpid(), include_parent=False)


def print_help() -> None:
    """Print Photon's flags and all of SGLang's."""
    parser = argparse.ArgumentParser(prog="python -m sglang_photon.launch_server")
    add_flags(parser.add_argument_group("Photon"))
    ServerArgs.add_cli_args(parser)
    parser.print_help()
