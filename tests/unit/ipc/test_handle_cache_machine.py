"""Any order of calls: the cache against a model of it, with a driver that notices misuse."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sglang_photon.ipc.handle_cache import HandleCache
from sglang_photon.ipc.handles import (
    HandleBusyError,
    HandleCacheClosedError,
    HandleKey,
    HandleOpenError,
    StaleHandleError,
)
from sglang_photon.ipc.mappings import Lease
from tests.unit.ipc.driver import Driver, Gate, Mapping

SIZES = {b"s": 10, b"t": 20, b"u": 60, b"v": 150}
PRODUCERS = ("a", "b")
FATES = ("restart", "stale", "fails", "dies")

devices = st.sampled_from([0, 0, 1])
producers = st.sampled_from(PRODUCERS)
handles = st.sampled_from(sorted(SIZES))


@dataclass
class Reader:
    """A lease in somebody's hands."""

    key: HandleKey
    mapping: Mapping
    lease: Lease[Mapping]


class Model:
    """What is mapped, least recently used first, and which of it a `get` may return."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self.mapped: list[HandleKey] = []
        self.dead: set[HandleKey] = set()
        self.alive: dict[str, int] = {}
        self.readers: list[Reader] = []
        self.fences: dict[HandleKey, list[Gate]] = {}
        self.opens = self.failed = self.hits = self.misses = self.refused = 0

    def idle(self, key: HandleKey) -> bool:
        """By the readers, and by the fences of all who ever read this mapping."""
        read = any(reader.key == key for reader in self.readers)
        return not read and all(gate.passed for gate in self.fences.get(key, []))

    def over(self) -> bool:
        nbytes = sum(SIZES[key.handle] for key in self.mapped)
        return len(self.mapped) > self.max_entries or nbytes > self.max_bytes

    def settle(self) -> None:
        """What the cache does whenever it looks: the dead first, then the least recently used."""
        for key in [key for key in self.mapped if key in self.dead and self.idle(key)]:
            self.drop(key)
        for key in [key for key in self.mapped if key not in self.dead]:
            if self.over() and self.idle(key):
                self.drop(key)

    def drop(self, key: HandleKey) -> None:
        self.mapped.remove(key)
        self.fences.pop(key, None)

    def outlive(self, producer: str, generation: int) -> bool:
        """Whether the cache will look: it does when a generation was outlived."""
        if generation <= self.alive.get(producer, generation - 1):
            return False
        self.alive[producer] = generation
        self.dead |= {
            k for k in self.mapped if k.producer == producer and k.generation < generation
        }
        return True


class HandleCacheMachine(RuleBasedStateMachine):
    """Rules call the cache and the model alike; after every rule both map the same."""

    @initialize(max_entries=st.integers(1, 4), max_bytes=st.sampled_from([40, 100, 1000]))
    def start(self, max_entries: int, max_bytes: int) -> None:
        self.driver = Driver(nbytes=lambda key: SIZES[key.handle])
        self.cache: HandleCache[Mapping] = self.driver.cache(
            max_entries=max_entries, max_bytes=max_bytes
        )
        self.model = Model(max_entries, max_bytes)

    @rule(device=devices, producer=producers, handle=handles)
    def get(self, device: int, producer: str, handle: bytes) -> None:
        """Of the generation that lives: a hit, or an open."""
        self.ask(HandleKey(device, producer, self.model.alive.get(producer, 1), handle))

    @rule(data=st.data())
    def get_again(self, data: st.DataObject) -> None:
        live = [key for key in self.model.mapped if key not in self.model.dead]
        if live:
            self.ask(data.draw(st.sampled_from(live)))

    @rule(device=devices, producer=producers, handle=handles, what=st.sampled_from(FATES))
    def get_with_trouble(self, device: int, producer: str, handle: bytes, what: str) -> None:
        """A restart, a request of an earlier life, an open that fails, a death during the open."""
        alive = self.model.alive.get(producer, 1)
        generation = alive + {"restart": 1, "stale": -1}.get(what, 0)
        self.ask(HandleKey(device, producer, generation, handle), what)

    def ask(self, key: HandleKey, what: str = "") -> None:
        fails, dies = what == "fails", what == "dies"
        self.driver.on_open = lambda key: self.disturb(key, fails, dies)
        error = self.expected_error(key, fails, dies)
        event(error.__name__ if error else "hit" if key in self.model.mapped else "open")
        if error is not None:
            with pytest.raises(error):
                self.cache.get(key)
            return
        lease = self.cache.get(key)
        lease.mapping.readers += 1
        self.model.readers.append(Reader(key, lease.mapping, lease))
        if key in self.model.mapped:
            self.model.hits += 1
            self.model.mapped.remove(key)
            self.model.mapped.append(key)
        else:
            self.model.misses += 1
            self.model.opens += 1
            self.model.mapped.append(key)
            self.model.settle()

    def expected_error(self, key: HandleKey, fails: bool, dies: bool) -> type[Exception] | None:
        """How `get` will end, from the model; what it does to the model when it ends badly."""
        model = self.model
        if key.generation < model.alive.get(key.producer, key.generation):
            model.refused += 1
            return StaleHandleError
        if model.outlive(key.producer, key.generation):
            model.settle()
        if key in model.mapped:
            return None
        occupant = next((each for each in model.mapped if each.place == key.place), None)
        if occupant is not None and not model.idle(occupant):
            model.misses += 1
            return HandleBusyError
        if occupant is not None:
            model.drop(occupant)
        model.settle()
        if fails:
            model.misses += 1
            model.failed += 1
            return HandleOpenError
        if dies:
            model.misses += 1
            model.opens += 1
            model.outlive(key.producer, key.generation + 1)
            model.settle()
            return StaleHandleError
        return None

    def disturb(self, key: HandleKey, fails: bool, dies: bool) -> None:
        if fails:
            raise OSError("refused")
        if dies:
            self.cache.invalidate(key.producer, key.generation)

    @precondition(lambda self: self.model.readers)
    @rule(data=st.data(), way=st.sampled_from(["release", "with", "drop"]))
    def let_go(self, data: st.DataObject, way: str) -> None:
        self.release(data.draw(st.sampled_from(self.model.readers)), way)

    def release(self, reader: Reader, way: str) -> None:
        looks = reader.key in self.model.dead or self.model.over()
        self.model.readers.remove(reader)
        self.driver.read(reader.mapping, reader.key)
        reader.mapping.readers -= 1
        if way == "release":
            reader.lease.release()
        elif way == "with":
            with reader.lease:
                assert reader.lease.mapping is reader.mapping
        del reader.lease
        if looks:
            self.model.settle()

    @precondition(lambda self: self.model.readers)
    @rule(data=st.data())
    def guard(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.model.readers))
        gate = Gate()
        reader.mapping.fences.append(gate)
        self.model.fences.setdefault(reader.key, []).append(gate)
        reader.lease.guard(gate)

    @rule(data=st.data())
    def pass_fence(self, data: st.DataObject) -> None:
        gates = [gate for gates in self.model.fences.values() for gate in gates if not gate.passed]
        if gates:
            data.draw(st.sampled_from(gates)).passed = True

    @rule()
    def poll(self) -> None:
        self.cache.poll()
        self.model.settle()

    @rule(producer=producers, late=st.booleans())
    def invalidate(self, producer: str, late: bool) -> None:
        """A death; a late report tells of one that is known."""
        generation = self.model.alive.get(producer, 1) - late
        self.cache.invalidate(producer, generation)
        if self.model.outlive(producer, generation + 1):
            self.model.settle()

    @invariant()
    def both_map_the_same(self) -> None:
        assert self.driver.violations == []
        assert self.driver.keys() == set(self.model.mapped)
        counters = self.cache.counters()
        model = self.model
        assert counters.opens == model.opens
        assert counters.failed_opens == model.failed
        assert (counters.hits, counters.misses, counters.refused) == (
            model.hits,
            model.misses,
            model.refused,
        )
        assert counters.mapped_bytes == sum(SIZES[key.handle] for key in model.mapped)
        assert counters.waiting == len(model.dead & set(model.mapped))
        assert counters.entries == len(model.mapped) - counters.waiting

    def teardown(self) -> None:
        """Closed under all readers, which then go one by one: nothing is left."""
        if not hasattr(self, "model"):
            return
        self.cache.close()
        self.model.dead |= set(self.model.mapped)
        self.model.settle()
        self.both_map_the_same()
        with pytest.raises(HandleCacheClosedError):
            self.cache.get(HandleKey(0, "a", 99, b"s"))
        while self.model.readers:
            self.release(self.model.readers[0], "release")
        assert self.driver.keys() == set(self.model.mapped)
        for gate in [gate for gates in self.model.fences.values() for gate in gates]:
            gate.passed = True
        self.cache.poll()
        assert self.driver.keys() == set()
        assert self.driver.violations == []


TestHandleCacheMachine = HandleCacheMachine.TestCase
TestHandleCacheMachine.settings = settings(
    max_examples=200, stateful_step_count=50, deadline=None, derandomize=True
)
