"""What the server says about its load, from its `/metrics`."""

from __future__ import annotations

import re
import urllib.request

from sglang_photon.profiling.gpu.diagnosis import ServerState

LIMIT_S = 5.0


def read_server(port: int) -> tuple[ServerState, str | None]:
    """Tokens per second and running requests now, and why they are not known if they are not."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as page:
            text = page.read().decode()
    except OSError as error:
        return ServerState(), f"the server tells nothing ({error}): start it with --enable-metrics"
    return parse_server(text), None


def parse_server(page: str) -> ServerState:
    """From a page of SGLang's metrics; all ranks together."""
    return ServerState(
        tokens_per_second=_sum(page, "sglang:gen_throughput"),
        running=_sum(page, "sglang:num_running_reqs"),
    )


def _sum(page: str, name: str) -> float | None:
    values = re.findall(rf"^{re.escape(name)}\{{[^}}]*\}}\s+(\S+)", page, re.M)
    return sum(float(value) for value in values) if values else None
