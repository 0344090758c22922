"""A row made ready to send: its pictures read, checked and put into the request.

Web pictures are awaited, everything else runs in worker threads, ahead of the requests in flight:
while the server computes, the next pictures are already there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson

from sglang_photon.batch import media, pictures
from sglang_photon.batch.fetch import Fetcher
from sglang_photon.batch.media import MediaRoot, Place
from sglang_photon.batch.pictures import Bounds
from sglang_photon.batch.rows import Mark, Prepared, Row, RowError, digest, request_bytes

# Reading waits for disks, and base64 runs without the interpreter's lock for large pictures only.
WORKERS = min(8, (os.cpu_count() or 1) + 2)
ENCODED = 4 / 3
WEB_BYTES = 4 << 20
"""What a picture on the web is taken for until it is here."""
COPIES = 2
"""The data URL, and the request that holds it."""


class Preparer:
    """Makes rows ready.

    Args:
        root: where local pictures may lie.
        bounds: of a picture.
        fetcher: for pictures from the web.
        extra: fields that every request gets unless its row has them; no part of a row's mark.
        workers: threads.
    """

    def __init__(
        self,
        *,
        root: MediaRoot,
        bounds: Bounds,
        fetcher: Fetcher,
        extra: Mapping[str, Any] | None = None,
        workers: int = WORKERS,
    ) -> None:
        self._root = root
        self._bounds = bounds
        self._fetcher = fetcher
        self._extra = dict(extra or {})
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="pictures")

    def close(self) -> None:
        """End the threads; work that has not begun is dropped."""
        self._pool.shutdown(cancel_futures=True)

    def weight(self, row: Row) -> int:
        """Bytes of memory that the row will take, about."""
        size = row.size
        try:
            found = media.places(row)
        except RowError:
            return size
        for place in found:
            if place.local:
                size += int(self._file_size(place) * ENCODED * COPIES)
            elif place.address.startswith(media.WEB):
                size += min(WEB_BYTES, self._bounds.file_bytes)
        return size

    async def prepare(self, row: Row) -> Prepared:
        """The row, ready; its body is emptied, for the request holds all of it.

        Raises:
            RowError: the row must not be sent, or a picture cannot be had.
        """
        media.check(row)
        found = media.places(row)
        web = [place for place in found if place.address.startswith(media.WEB)]
        fetched = await asyncio.gather(*(self._fetcher.fetch(place.address) for place in web))
        contents = {id(place): content for place, content in zip(web, fetched, strict=True)}
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._assemble, row, found, contents)

    async def mark(self, row: Row) -> Mark:
        """The mark of a row that could not be made ready."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, _mark_of_refused, row, self._root)

    def _assemble(self, row: Row, found: list[Place], fetched: dict[int, bytes]) -> Prepared:
        quick = media.quick_mark(row, found, self._root)
        request = request_bytes(row)
        local: list[bytes] = []
        urls: list[str] = []
        for place in found:
            address = place.address
            if address.startswith(media.DATA):
                urls.append(pictures.checked_data_url(address, self._bounds))
                continue
            content = fetched.pop(id(place), None)
            if content is None:
                content = pictures.read_file(self._root.path(address), self._bounds)
                local.append(content)
            urls.append(pictures.data_url(content, address, self._bounds))
        mark = Mark(fingerprint=media.fingerprint(request, local), quick=quick)
        del request, local
        for place, url in zip(found, urls, strict=True):
            place.holder[place.key] = url
        payload = orjson.dumps({**self._extra, **row.body})
        row.body.clear()
        return Prepared(row=row, payload=payload, mark=mark, pictures=len(found))

    def _file_size(self, place: Place) -> int:
        try:
            return min(self._root.path(place.address).stat().st_size, self._bounds.file_bytes)
        except (RowError, OSError, ValueError):
            return 0


def _mark_of_refused(row: Row, root: MediaRoot) -> Mark:
    """Its pictures may be what is wrong with it, so they do not count."""
    try:
        found = media.places(row)
    except RowError:
        found = []
    quick = media.quick_mark(row, found, root)
    return Mark(fingerprint=digest(request_bytes(row), quick.encode()), quick=quick)
