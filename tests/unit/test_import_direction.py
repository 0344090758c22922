"""The rules of the tree hold, and breaking one is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_tree

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree that keeps all rules."""
    for folder in ("slots", "rows", "loop", "upstream", "ipc", "profiling"):
        home = tmp_path if folder == "profiling" else tmp_path / "sglang_photon"
        (home / folder).mkdir(parents=True)
        (home / folder / "__init__.py").write_text("")
    (tmp_path / "sglang_photon/profiling").symlink_to("../profiling")
    write(tmp_path, "sglang_photon/__init__.py", "")
    write(tmp_path, "sglang_photon/records.py", "import sglang_photon.errors")
    write(tmp_path, "sglang_photon/slots/state.py", "from sglang_photon import records")
    write(tmp_path, "sglang_photon/loop/tick.py", "from sglang_photon.slots.state import State")
    write(tmp_path, "sglang_photon/upstream/scheduler.py", "import sglang.srt.managers")
    return tmp_path


def write(tree: Path, name: str, text: str) -> None:
    (tree / name).write_text(text + "\n")


def test_this_tree_keeps_all_rules() -> None:
    assert check_tree.problems(ROOT) == []


def test_the_small_tree_keeps_all_rules(tree: Path) -> None:
    assert check_tree.problems(tree) == []


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        # Against the direction, in every spelling.
        (
            "slots/state.py",
            "from sglang_photon.loop import tick",
            "loop does not come before slots",
        ),
        ("slots/state.py", "from sglang_photon import loop", "loop does not come before slots"),
        ("slots/state.py", "from ..loop.tick import Tick", "loop does not come before slots"),
        ("slots/state.py", "from .. import loop", "loop does not come before slots"),
        ("records.py", "def f():\n    import sglang_photon.rows", "rows does not come before"),
        ("slots/state.py", "import sglang_photon.rows", "rows does not come before slots"),
        ("loop/tick.py", "from sglang_photon import plugin", "plugin does not come before loop"),
        ("plugin.py", "import sglang_photon.launch_server", "does not come before plugin"),
        ("rows/batch.py", "import sglang_photon.profiling.record", "does not come before rows"),
        # sglang outside the seam.
        ("loop/tick.py", "import sglang", "only sglang_photon.upstream may"),
        ("cli.py", "def f():\n    from sglang.srt import utils", "only sglang_photon.upstream may"),
        ("cli.py", "if TYPE_CHECKING:\n    import sglang.srt", "only sglang_photon.upstream may"),
        ("cli.py", "importlib.import_module('sglang.srt')", "only sglang_photon.upstream may"),
        # torch where it must not be.
        ("slots/state.py", "def f():\n    import torch", "slots.state → torch"),
        ("ipc/handle_cache.py", "import torch.cuda", "handle_cache → torch.cuda"),
        ("slots/__init__.py", "import torch", "sglang_photon.slots → torch"),
        ("records.py", "from torch import nn", "slots.state → sglang_photon.records → torch"),
        ("__init__.py", "import torch", "sglang_photon → torch"),
    ],
)
def test_a_forbidden_import_is_found(tree: Path, name: str, text: str, expected: str) -> None:
    write(tree, f"sglang_photon/{name}", text)
    found = check_tree.problems(tree)
    assert any(expected in problem for problem in found), found


def test_profiling_never_imports_torch(tree: Path) -> None:
    write(tree, "profiling/record.py", "def f():\n    import torch")
    (problem,) = check_tree.problems(tree)
    assert problem.startswith("sglang_photon.profiling.record must load without torch")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("__init__.py", "def f():\n    import torch"),
        ("slots/slot.py", "import torch"),
        ("slots/state.py", "if TYPE_CHECKING:\n    from sglang_photon.slots.slot import Slot"),
        ("cli.py", "import sglang_photon.upstream.scheduler"),
        ("cli.py", "import sglang_photon_extras, sglanger"),
    ],
)
def test_an_allowed_import_is_left_alone(tree: Path, name: str, text: str) -> None:
    write(tree, "sglang_photon/slots/slot.py", "import torch")
    write(tree, f"sglang_photon/{name}", text)
    assert check_tree.problems(tree) == []


def test_a_long_file_is_found_once(tree: Path) -> None:
    write(tree, "profiling/long.py", "\n" * 398)
    assert check_tree.problems(tree) == []
    write(tree, "profiling/long.py", "\n" * 399)
    (problem,) = check_tree.problems(tree)
    assert problem.startswith("profiling/long.py: 400 lines")


@pytest.mark.parametrize("folder", ["home/someone", "root", "tmp", "work"])
def test_a_path_of_one_machine_is_found(tree: Path, folder: str) -> None:
    write(tree, "README.md", f"see /{folder}/notes.txt")
    (problem,) = check_tree.problems(tree)
    assert problem.startswith("README.md:1: a path of one machine")


def test_the_exit_code_tells(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_tree.main([str(tree)]) == 0
    write(tree, "sglang_photon/cli.py", "import sglang")
    assert check_tree.main([str(tree)]) == 1
    assert "sglang_photon/cli.py:1: " in capsys.readouterr().out
