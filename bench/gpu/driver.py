"""The three CUDA driver calls of the transport's protocol, by ctypes: no package is needed.

A word in shared device memory is written by the producer's stream once its copy is done (ready),
and by the consumer's stream once it has read (acknowledged); each waits for the other's word on its
stream, not on the host. SGLang's transport works this way.
"""

from __future__ import annotations

import ctypes
import functools

import torch

from sglang_photon.errors import PhotonError

WAIT_AT_LEAST = 0


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def write_word(address: int, value: int, stream: torch.cuda.Stream) -> None:
    """The stream writes a 32-bit word when it gets there."""
    _call("cuStreamWriteValue32_v2", stream, address, value, 0)


def wait_word(address: int, value: int, stream: torch.cuda.Stream) -> None:
    """The stream waits until the 32-bit word has reached a value."""
    _call("cuStreamWaitValue32_v2", stream, address, value, WAIT_AT_LEAST)


def _call(name: str, stream: torch.cuda.Stream, address: int, value: int, flags: int) -> None:
    code = getattr(_library(), name)(
        ctypes.c_void_p(stream.cuda_stream),
        ctypes.c_uint64(address),
        ctypes.c_uint32(value),
        ctypes.c_uint(flags),
    )
    if code:
        raise PhotonError(f"{name} answers {code}", "See the CUDA driver's list of errors")
