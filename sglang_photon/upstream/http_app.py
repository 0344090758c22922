"""The ASGI application of each tokenizer worker (`--tokenizer-worker-num` above 1).

SGLang starts these workers as fresh interpreters that load no plugins, and lets an environment
variable name the application. It is SGLang's own, imported after the tokenizer is changed.
"""

from __future__ import annotations

import os

from sglang.srt.entrypoints.http_server import app

from sglang_photon.config import PhotonConfig
from sglang_photon.upstream import admission, tokenizing

__all__ = ["app"]

tokenizing.install(PhotonConfig.from_environment(os.environ))
admission.add_middleware(app)
