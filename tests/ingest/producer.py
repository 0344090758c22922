"""A tokenizer process with a pool: puts tensors in, sends what names them, does as it is told."""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path

os.environ["SGLANG_USE_CPU_ENGINE"] = "1"

from sglang_photon import reference

reference.install()

import torch  # noqa: E402
from sglang.srt.multimodal.transport.cuda_ipc import CudaIpcTensorTransportProxy  # noqa: E402

from sglang_photon.ipc.producers import PoolAnnouncement, Producer  # noqa: E402
from sglang_photon.upstream.fake_device import Memory, word  # noqa: E402
from sglang_photon.upstream.ipc_pools import PRODUCER  # noqa: E402

DATA_START = 1024
POOL_BYTES = 1 << 20


def run(connection: Connection, folder: Path, name: bytes) -> None:
    """Serve one pool until the other side hangs up."""
    memory = Memory(folder / f"pool-{os.getpid()}", POOL_BYTES)
    handle = memory.handle(name=name)
    connection.send(PoolAnnouncement(Producer.this_process(), handle))
    sent = 0
    while True:
        try:
            command, values = connection.recv()
        except EOFError:
            return
        ready, ack = 8 * sent, 8 * sent + 4
        if command == "send":
            tensor = torch.tensor(values, dtype=torch.float32)
            start = DATA_START + 256 * sent
            memory.storage[start : start + tensor.nbytes].copy_(tensor.untyped_storage())
            proxy = CudaIpcTensorTransportProxy(
                data=tensor.view(torch.uint8),
                info_data=tensor,
                pool_ipc_handle=handle,
                pool_byte_offset=start,
                ready_byte_offset=ready,
                ack_byte_offset=ack,
                generation=1,
                total_consumer_count=1,
                use_pool_handle_cache=True,
            )
            proxy.proxy_state["ipc_extra"][PRODUCER] = tuple(Producer.this_process())
            connection.send(proxy)
            sent += 1
        elif command == "ready":
            word(memory.storage.data_ptr() + 8 * values).value = 1
            connection.send(None)
        elif command == "acknowledged":
            connection.send(word(memory.storage.data_ptr() + 8 * values + 4).value)


if __name__ == "__main__":
    run(Connection(int(sys.argv[1])), Path(sys.argv[2]), bytes.fromhex(sys.argv[3]))
