"""Multimodal batch jobs that survive: `photon batch`.

A job is a list of rows (`rows`), read from a file, a folder or a table (`lines`, `folder`,
`table`), made ready by workers (`prepare`, `pictures`), sent to one or several servers (`client`,
`flow`), and kept on disk as results come (`store`, `journal`). Nothing here imports torch or
SGLang: the server is another process (`replicas`).
"""

from __future__ import annotations
