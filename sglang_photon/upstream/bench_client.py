"""`python -m sglang_photon.upstream.bench_client`: SGLang's benchmark client, arguments and all.

The client imports the package `datasets` at its start, and uses it for one data set of many. A
server needs no such package, so where it is missing the client does without that data set.
"""

from __future__ import annotations

import runpy
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NoReturn

from sglang_photon.errors import UsageError

PACKAGE = "datasets"
CLIENT = "sglang.benchmark.serving"


def main() -> None:
    """Run the client with this process's arguments."""
    if find_spec(PACKAGE) is None:
        sys.modules[PACKAGE] = stand_in()
    runpy.run_module(CLIENT, run_name="__main__", alter_sys=True)


def stand_in() -> ModuleType:
    """What `import datasets` finds: the one name that the client takes from it."""
    module = ModuleType(PACKAGE)

    def load_dataset(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise UsageError("This data set needs the package datasets", "pip install datasets")

    vars(module)["load_dataset"] = load_dataset
    return module


if __name__ == "__main__":
    main()
