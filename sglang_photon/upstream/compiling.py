"""Grammars are compiled in processes of their own, which can be killed.

A grammar may take minutes to compile, or crash the compiler. In a thread of the scheduler nothing
can stop it: it takes the cores that serve everybody else, and a crash is the server's. Here a small
process is forked once, before the scheduler has a device or threads, and forks again for each
grammar. That child has a timer whose signal ends it, in the middle of the compiler too; what it has
compiled comes back as text.

    scheduler              forked once              forked per grammar
    compile_regex(...) ->  receive the request  ->  compile, answer, exit
                 <---------------------------------

SGLang's grammar backend, its cache and its errors stay as they are: `KillableCompiler` stands where
the backend keeps its compiler. Backends other than xgrammar compile in threads, as upstream does.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import struct
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, NoReturn

import setproctitle
from sglang.srt.utils.common import kill_itself_when_parent_died
from xgrammar import CompiledGrammar, GrammarCompiler, TokenizerInfo

TITLE = "photon::grammars"
LENGTH = struct.Struct("!Q")
KEPT = 64
"""Grammars, compiled lately or being compiled."""
NICENESS = 5
"""Of compilers: serving goes first."""


class CompilerProcess:
    """The process that forks compilers. Made early: it is a copy of this process as it is then."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        process_id = os.fork()
        if process_id == 0:
            _run_to_its_end(partial(_serve, theirs))
        theirs.close()
        self._socket = ours
        self.pid = process_id
        self.close = weakref.finalize(self, _end, ours, process_id)
        """Ends the process; a compiler that is at work ends at its limit."""

    def tell_tokenizer(self, info: TokenizerInfo) -> None:
        """Say for which vocabulary grammars are compiled from now on."""
        self._open(("tokenizer", info.serialize_json())).close()

    def compile(self, method: str, args: Any, kwargs: Any, *, limit_s: float) -> str:
        """Run one method of `GrammarCompiler`; several threads may.

        Returns:
            The grammar, serialized.

        Raises:
            RuntimeError: the grammar is wrong, takes too long, or crashes the compiler. It is what
                SGLang's backends take for a grammar that does not compile.
        """
        started = time.monotonic()
        with self._open(("compile", method, args, kwargs, limit_s)) as channel:
            answer = _received(channel)
        if answer is not None:
            good, value = answer
            if good:
                return str(value)
            raise RuntimeError(value)
        if time.monotonic() - started >= limit_s:
            raise RuntimeError(f"The grammar timed out: it took longer than {limit_s:g} s")
        raise RuntimeError("The grammar crashed its compiler")

    def _open(self, request: Any) -> socket.socket:
        """Send a request, with a channel of its own for its answer."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._socket, [b"."], [theirs.fileno()])
        _send(ours, request)
        return ours


class KillableCompiler:
    """In place of a backend's `GrammarCompiler`.

    Requests that ask for the same grammar at the same time get the same one: SGLang's own cache
    answers only those that come after it has been compiled.

    Args:
        process: where grammars are compiled.
        info: the backend's vocabulary.
        limit_s: seconds that a grammar may take.
    """

    def __init__(self, *, process: CompilerProcess, info: TokenizerInfo, limit_s: float) -> None:
        self._process = process
        self._limit_s = limit_s
        self._info = info
        self._kept: OrderedDict[bytes, Future[CompiledGrammar]] = OrderedDict()
        self._lock = threading.Lock()
        process.tell_tokenizer(info)

    def __getattr__(self, name: str) -> Callable[..., CompiledGrammar]:
        if not name.startswith("compile_"):
            raise AttributeError(name)

        def compile_once(*args: Any, **kwargs: Any) -> CompiledGrammar:
            key = pickle.dumps((name, args, kwargs))
            with self._lock:
                found = self._kept.get(key)
                if found is None:
                    mine = self._kept[key] = Future()
                    if len(self._kept) > KEPT:
                        self._kept.popitem(last=False)
                else:
                    self._kept.move_to_end(key)
            if found is not None:
                return found.result()
            try:
                text = self._process.compile(name, args, kwargs, limit_s=self._limit_s)
                mine.set_result(CompiledGrammar.deserialize_json(text, self._info))
            except Exception as error:
                with self._lock:
                    self._kept.pop(key, None)
                mine.set_exception(error)
                raise
            return mine.result()

        return compile_once

    def clear_cache(self) -> None:
        """Forget what has been compiled."""
        with self._lock:
            self._kept.clear()


def compile_elsewhere(backend: Any, process: CompilerProcess, *, limit_s: float) -> None:
    """Have a grammar backend compile in other processes, if it compiles with xgrammar."""
    inner = getattr(backend, "grammar_backend", backend)  # below one that handles reasoning
    if isinstance(getattr(inner, "grammar_compiler", None), GrammarCompiler):
        inner.grammar_compiler = KillableCompiler(
            process=process, info=inner._tokenizer_info, limit_s=limit_s
        )


def _end(channel: socket.socket, process_id: int) -> None:
    channel.close()
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process_id, 0)


def _run_to_its_end(work: Callable[[], None]) -> NoReturn:
    """In a forked process: nothing of the process that it was may run on, or run twice."""
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def _serve(channel: socket.socket) -> None:
    kill_itself_when_parent_died()
    setproctitle.setproctitle(TITLE)
    for number in (signal.SIGINT, signal.SIGTERM):
        # Ctrl-C reaches the whole group; the end of the channel is what ends this process.
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _close_all_but(channel.fileno())
    info: TokenizerInfo | None = None
    while True:
        sent, files, _, _ = socket.recv_fds(channel, 1, 1)
        if not sent:
            return
        with socket.socket(fileno=files[0]) as answers:
            request = _received(answers)
            if request is None:
                continue
            if request[0] == "tokenizer":
                info = TokenizerInfo.deserialize_json(request[1])
            elif os.fork() == 0:
                _run_to_its_end(partial(_compile, answers, info, *request[1:]))


def _close_all_but(kept: int) -> None:
    """Close every inherited file but the standard ones: some are waited on by others for their end.

    One by one: the highest number that a file may have can be in the billions.
    """
    for number in [int(name) for name in os.listdir("/proc/self/fd")]:  # noqa: PTH208 - names only
        if number > 2 and number != kept:
            with contextlib.suppress(OSError):
                os.close(number)


def _compile(
    answers: socket.socket, info: TokenizerInfo, method: str, args: Any, kwargs: Any, limit_s: float
) -> None:
    kill_itself_when_parent_died()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    os.nice(NICENESS)
    try:
        compiler = GrammarCompiler(info, cache_enabled=False)
        answer = (True, getattr(compiler, method)(*args, **kwargs).serialize_json())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the request's
        answer = (False, str(error))
    _send(answers, answer)


def _send(channel: socket.socket, value: Any) -> None:
    content = pickle.dumps(value)
    channel.sendall(LENGTH.pack(len(content)) + content)


def _received(channel: socket.socket) -> Any:
    """The next value; None where the other side has ended before it was complete."""
    with channel.makefile("rb") as stream:
        length = stream.read(LENGTH.size)
        if len(length) < LENGTH.size:
            return None
        (size,) = LENGTH.unpack(length)
        content = stream.read(size)
    return pickle.loads(content) if len(content) == size else None
