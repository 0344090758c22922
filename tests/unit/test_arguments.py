from __future__ import annotations

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


def test_replace_rewrites_every_occurrence_and_nothing_else() -> None:
    arguments = ArgumentList(["--model", "a", "--tp", "2", "--model-path=b", "--x"])
    arguments.replace(MODEL_PATH, "c")
    assert arguments.items == ["--model-path", "c", "--tp", "2", "--model-path", "c", "--x"]


def test_defaults_do_not_overrule_what_is_given() -> None:
    arguments = ArgumentList(["--device=cuda"])
    assert not arguments.add_default("--device", "cpu")
    assert arguments.add_default("--max-total-tokens", "9")
    assert arguments.items == ["--device=cuda", "--max-total-tokens", "9"]


def test_a_missing_value_and_a_bad_number_are_refused() -> None:
    with pytest.raises(UsageError, match="--port has no value"):
        ArgumentList(["--port"]).value("--port")
    with pytest.raises(UsageError, match=r"--port is 'x'\. Give a whole number"):
        ArgumentList(["--port", "x"]).number("--port", default=1)
    assert ArgumentList([]).number("--port", default=7) == 7
