from __future__ import annotations

from pathlib import Path

import pytest

from sglang_photon.arguments import MODEL_PATH, ArgumentList
from sglang_photon.errors import UsageError


def test_a_leading_bare_word_is_the_model() -> None:
    assert ArgumentList(["demo", "--port", "1"]).value(*MODEL_PATH) == "demo"


@pytest.mark.parametrize("argv", [["--model", "x"], ["--model-path=x"], ["--model-path", "x"]])
def test_value_knows_aliases_and_both_spellings(argv: list[str]) -> None:
    assert ArgumentList(argv).value(*MODEL_PATH) == "x"
    assert ArgumentList(argv).has(*MODEL_PATH)


def test_the_last_value_counts_as_in_argparse() -> None:
    assert ArgumentList(["--port", "1", "--port=2"]).value("--port") == "2"


def test_replace_leaves_one_value_and_touches_nothing_else() -> None:
    arguments = ArgumentList(["--model", "a", "--tp", "2", "--model-path=b", "--x"])
    arguments.replace(MODEL_PATH, "c")
    assert arguments.items == ["--model-path", "c", "--tp", "2", "--x"]


def test_defaults_do_not_overrule_what_is_given() -> None:
    arguments = ArgumentList(["--device=cuda"])
    assert not arguments.add_default("--device", "cpu")
    assert arguments.add_default("--max-total-tokens", "9")
    assert arguments.items == ["--max-total-tokens", "9", "--device=cuda"]


@pytest.mark.parametrize("argv", [["--max-total", "99"], ["--max-total=99"]])
def test_abbreviations_are_known_as_argparse_knows_them(argv: list[str]) -> None:
    arguments = ArgumentList(argv)
    assert not arguments.add_default("--max-total-tokens", "9")
    assert arguments.value("--max-total-tokens") == "99"


def test_a_short_word_is_a_flag_of_its_own() -> None:
    assert not ArgumentList(["--tp", "2"]).has("--tp-size")


def test_the_configuration_file_counts_and_the_command_line_wins(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("model-path: demo\nmax_total_tokens: 999\nport: 1\n")
    arguments = ArgumentList(["--config", str(file), "--port", "2"])
    assert arguments.value(*MODEL_PATH) == "demo"
    assert not arguments.add_default("--max-total-tokens", "9")
    assert arguments.number("--port", default=3) == 2
    arguments.replace(MODEL_PATH, "resolved")
    assert arguments.items == ["--model-path", "resolved", "--config", str(file), "--port", "2"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read"),
        ("a: [", "cannot be read"),
        ("- a", "is not a mapping"),
        ("photon-loop: sglang", "sets --photon-loop"),
    ],
)
def test_a_bad_configuration_file_is_one_clear_line(
    content: str | None, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "c.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError, match=problem) as refused:
        ArgumentList(["--config", str(file)])
    assert "\n" not in str(refused.value)


def test_a_missing_value_and_a_bad_number_are_refused() -> None:
    with pytest.raises(UsageError, match="--port has no value"):
        ArgumentList(["--port"]).value("--port")
    with pytest.raises(UsageError, match=r"--port is 'x'\. Give a whole number"):
        ArgumentList(["--port", "x"]).number("--port", default=1)
    assert ArgumentList([]).number("--port", default=7) == 7
