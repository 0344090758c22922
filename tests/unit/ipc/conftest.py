"""A driver for every test, asked at the end whether anything was misused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.ipc.driver import Driver


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    assert driver.violations == []
