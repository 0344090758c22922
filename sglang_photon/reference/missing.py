"""What a kernel name without a reference implementation answers with.

Upstream imports far more kernel names than it calls on one machine. A name that nobody calls must
import; a call must say at once which operation is meant and what to install.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from sglang_photon.errors import PhotonError

REMEDY = (
    "Install SGLang's own kernels: `pip install sglang-photon` on a GPU machine brings them; "
    "on a CPU choose a model and flags that do not need this operation"
)


class ReferenceOpMissing(PhotonError, NotImplementedError):  # noqa: N818
    """A kernel was called that has no reference implementation.

    Attributes:
        operation: the full name, such as ``sgl_kernel.moe_sum``.
    """

    def __init__(self, operation: str) -> None:
        super().__init__(f"{operation} has no reference implementation", REMEDY)
        self.operation = operation

    def __reduce__(self) -> tuple[type[ReferenceOpMissing], tuple[str]]:
        return type(self), (self.operation,)


def missing(operation: str) -> Callable[..., NoReturn]:
    """A function of any signature that raises `ReferenceOpMissing` for `operation`."""

    def call(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise ReferenceOpMissing(operation)

    call.__name__ = call.__qualname__ = operation.rpartition(".")[2]
    call.__doc__ = f"Stands in for {operation}; raises `ReferenceOpMissing` when called."
    return call
