"""`python -m sglang_photon.launch_server`: SGLang's launcher with Photon's scheduler process.

Takes every flag of SGLang's own launcher, and the `--photon-*` flags. Multiprocessing imports this
module again in every child, so it imports nothing heavy before `main` runs.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Sequence
from types import ModuleType

from sglang_photon.arguments import MODEL_PATH, ArgumentList
from sglang_photon.config import PhotonConfig
from sglang_photon.errors import PhotonError, UsageError, report
from sglang_photon.upstream.discovery import check_plugin_is_found
from sglang_photon.upstream.version import check_version

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 30000
NO_OVERLAP = "--disable-overlap-schedule"


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until stopped.

    Args:
        argv: arguments without the program's name; `sys.argv` when None.

    Returns:
        The exit code; an error that a person can mend is one line on stderr.
    """
    try:
        _launch(list(sys.argv[1:] if argv is None else argv))
    except PhotonError as error:
        return report(error)
    return 0


def _launch(argv: list[str]) -> None:
    config, rest = PhotonConfig.from_command_line(argv, os.environ)
    check_version(allow_other=config.allow_version)
    arguments = ArgumentList(rest)
    wants_help = "-h" in rest or "--help" in rest
    if not wants_help:
        _check_request(config, arguments)
    on_cpu = _choose_device(arguments)
    if not wants_help:
        _resolve_model(arguments, on_cpu=on_cpu)
    if config.loop == "blocking":
        arguments.add_default(NO_OVERLAP)
    os.environ.update(config.to_environment())
    server = _import_server()
    if wants_help:
        server.print_help()
    else:
        server.serve(arguments.items)


def _check_request(config: PhotonConfig, arguments: ArgumentList) -> None:
    """Refuse what cannot work, before anything is imported or made."""
    if not arguments.has(*MODEL_PATH):
        raise UsageError("No model is given", "Add --model-path, for example --model-path demo")
    if config.loop == "sglang" and arguments.has(NO_OVERLAP):
        raise UsageError(
            f"--photon-loop sglang is SGLang's overlap loop, {NO_OVERLAP} turns it off",
            "Use --photon-loop blocking",
        )
    if not config.stock:
        check_plugin_is_found(os.environ)
    _check_port(arguments)


def _import_server() -> ModuleType:
    try:
        return importlib.import_module("sglang_photon.upstream.server")
    except (ImportError, OSError, RuntimeError) as error:
        raise PhotonError(
            f"SGLang cannot be imported ({type(error).__name__}: {error})",
            "Run `photon doctor`, which names what is missing",
        ) from error


def _resolve_model(arguments: ArgumentList, *, on_cpu: bool) -> None:
    from sglang_photon import hub
    from sglang_photon.reference.models import names

    given = arguments.value(*MODEL_PATH) or ""
    model = names.resolve(given)
    hub.check_model(model.path, revision=arguments.value("--revision"), environ=os.environ)
    arguments.replace(MODEL_PATH, model.path)
    if model.is_demo:
        # A colon would mean "model:adapter" in a request.
        name = given.replace(":", "-")
        if arguments.add_default("--served-model-name", name) and name != given:
            _say(f'requests ask for this model as "{name}"')
    for flag, value in (*model.flags, *(model.cpu_flags if on_cpu else model.gpu_flags)):
        arguments.add_default(flag, value)
    if on_cpu:
        for variable, value in model.cpu_environment:
            os.environ.setdefault(variable, value)


def _choose_device(arguments: ArgumentList) -> bool:
    """Bring up the CPU engine, or the stand-ins that were asked for, before SGLang is imported.

    Returns:
        Whether the server runs on the CPU.
    """
    from sglang_photon import hardware, reference

    on_cpu = hardware.serves_on_cpu(arguments, os.environ)
    if on_cpu:
        plan = hardware.plan_cpu(arguments, os.environ, hardware.usable_cores())
        os.environ.update(plan.environment)
        if plan.chosen:
            _say(f"no GPU is used here; chosen for the CPU: {' '.join(plan.chosen)}")
    if reference.wanted(os.environ):
        os.environ.update(reference.child_environment(os.environ))
        reference.install()
    return on_cpu


def _check_port(arguments: ArgumentList) -> None:
    """Refuse a busy port now: SGLang would find out after loading the model.

    Raises:
        UsageError: another process listens there, or the host is not an address of this machine.
    """
    host = arguments.value("--host") or DEFAULT_HOST
    port = arguments.number("--port", default=DEFAULT_PORT)
    if not 0 < port < 1 << 16:
        raise UsageError(f"--port is {port}", "Choose a port from 1 to 65535")
    if arguments.has("--enable-http-worker-reuseport"):
        return
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise UsageError(
            f"Cannot listen on {host}:{port} ({error})",
            "Choose another port with --port, or stop the process that has it",
        ) from error


def _say(text: str) -> None:
    print(f"sglang-photon: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
