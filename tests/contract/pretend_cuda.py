"""Run a piece of code as if there were a GPU: SGLang's CUDA paths, on a CPU, for small shapes.

Tensors asked for on `cuda` lie in host memory and say that they lie on the device, streams and
events do nothing, and Triton interprets its kernels. What runs is every import, every choice and
every kernel of the CUDA path, in order; what is not there is concurrency, graphs and speed.

    python -m tests.contract.pretend_cuda LOOP

Prints the tokens that the loop generates for a text row and for a row with a picture.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sglang_photon import reference

CARD = SimpleNamespace(
    name="pretended", total_memory=140 << 30, multi_processor_count=132, major=9, minor=0,
    warp_size=32, is_integrated=False, L2_cache_size=60 << 20, gcnArchName="",
    shared_memory_per_block_optin=232448, max_threads_per_multi_processor=2048,
)  # fmt: skip
NOTHING = (
    "empty_cache", "init", "reset_peak_memory_stats", "set_device", "set_stream", "synchronize",
    "_lazy_init",
)  # fmt: skip


class Event:
    """Always past."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._at = 0.0

    def record(self, *_: Any) -> None:
        self._at = time.perf_counter()

    def elapsed_time(self, later: Event) -> float:
        """Milliseconds."""
        return (later._at - self._at) * 1e3

    def wait(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


class Stream:
    """Nothing is ever queued on it."""

    made = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        Stream.made += 1
        self.cuda_stream = Stream.made

    def wait_stream(self, _: Any) -> None: ...

    def wait_event(self, _: Any) -> None: ...

    def record_event(self, *_: Any) -> Event:
        return Event()

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


class Entered:
    """`torch.cuda.stream(...)` and `torch.cuda.device(...)`."""

    current: list[Any] = [Stream()]  # noqa: RUF012 - the one stack of this process

    def __init__(self, entered: Any = None, *_: Any) -> None:
        stays = Entered.current[-1]
        self._entered = entered if isinstance(entered, Stream) else stays

    def __enter__(self) -> Entered:
        Entered.current.append(self._entered)
        return self

    def __exit__(self, *_: Any) -> None:
        Entered.current.pop()


def pretend() -> None:
    """Do so from here on, in this process, before SGLang is imported."""
    os.environ.update(
        SGLANG_PHOTON_REFERENCE_OPS="1", TRITON_INTERPRET="1", TORCHDYNAMO_DISABLE="1"
    )
    torch: Any = importlib.import_module("torch")
    cuda = torch.cuda
    torch.version.cuda = torch.version.cuda or "13.0"
    answers: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "is_current_stream_capturing": False,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": (9, 0),
        "get_device_name": CARD.name,
        "get_device_properties": CARD,
        "mem_get_info": (30 << 30, 40 << 30),
        "memory_allocated": 0,
        "memory_reserved": 0,
        "max_memory_allocated": 0,
        **dict.fromkeys(NOTHING),
    }
    for name, answer in answers.items():
        setattr(cuda, name, _always(answer))
    cuda.Stream = torch.Stream = Stream
    cuda.Event = torch.Event = Event
    cuda.stream = cuda.StreamContext = cuda.device = Entered
    cuda.current_stream = cuda.default_stream = lambda *_: Entered.current[-1]
    torch.get_device_module = _always(cuda)
    torch.accelerator.is_available = _always(True)
    torch.Tensor.record_stream = _always(None)
    torch.Generator = _host_generator(torch.Generator)
    for name in ("init_process_group", "new_group"):
        setattr(torch.distributed, name, _with_gloo(getattr(torch.distributed, name)))
    _placement(torch).__enter__()
    os.environ.update(reference.child_environment(os.environ))
    reference.install()


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


def _host_generator(real: Any) -> Any:
    class Generator(real):  # type: ignore[misc]
        def __new__(cls, device: Any = None) -> Any:
            return real("cpu")

    return Generator


def _with_gloo(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return real(*args, **{**kwargs, "backend": "gloo"} | {"device_id": None})

    def group(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)
        return real(*args, **{**kwargs, "backend": "gloo"})

    return call if real.__name__ == "init_process_group" else group


def _placement(torch: Any) -> Any:
    """Puts into host memory what is asked for on the device, and lets it say otherwise."""
    tensor = torch.Tensor
    lies = {
        tensor.is_cuda.__get__: True,
        tensor.is_cpu.__get__: False,
        tensor.device.__get__: torch.device("cuda", 0),
    }

    def placed(value: Any) -> Any:
        if isinstance(value, str) and value.startswith("cuda"):
            return "cpu"
        if isinstance(value, torch.device) and value.type == "cuda":
            return torch.device("cpu")
        return value

    class Placement(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            if function is tensor.cuda:
                return args[0]
            if getattr(function, "__name__", "") == "__get__":
                for getter, answer in lies.items():
                    if function == getter:
                        return answer
            if function is tensor.pin_memory:
                return args[0].clone()
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
            return function(*map(placed, args), **{k: placed(v) for k, v in kwargs.items()})

    return Placement()


def main(loop: str) -> None:
    """One text row, one row with a picture, of a model of one layer."""
    pretend()
    import json

    from sglang_photon.bench.gpu import model_folder, served
    from sglang_photon.bench.gpu.trace import Window
    from sglang_photon.upstream.three_loops import Ask, ThreeLoops

    with tempfile.TemporaryDirectory() as scratch:
        model = model_folder.write(Path(scratch) / "model", small=True)
        config = json.loads((model / "config.json").read_text())
        config["text_config"].update(num_hidden_layers=1, layer_types=["full_attention"])
        config["vision_config"].update(depth=2, fullatt_block_indexes=[1])
        (model / "config.json").write_text(json.dumps(config))
        arguments = ["--model-path", str(model), "--disable-radix-cache"]
        arguments += ["--max-running-requests", "2", "--max-total-tokens", "512"]
        defaults = (*served.ON_GPU, ("--cuda-graph-backend-decode", "disabled"))
        with ThreeLoops.open(arguments, defaults=defaults) as loops:
            loops.use(loop)
            for side in (0, 56):
                ask = Ask(prompt=4, side=side, tokens=12, stream=True)
                probe = Window(device="cpu")
                outcome = loops.steady(ask, batch=1, warm=1, steps=2, traced=1, probe=probe)
                print("tokens", *outcome.tokens[0], flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
