"""SGLang's argument list, read and extended before SGLang is imported.

SGLang's own parser cannot be asked yet: which kernels it may import depends on the device that the
arguments choose. Only flags that Photon has to know are read here; everything else passes through.
As SGLang does, this knows a flag's aliases, both spellings (`--a b`, `--a=b`), abbreviations, and
the YAML file behind `--config`, whose values count unless the command line says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sglang_photon.errors import UsageError

MODEL_PATH = ("--model-path", "--model")
CONFIG = "--config"
SHORTEST = len("--abc")
"""Shorter words are not taken for abbreviations: they may be whole flags (`--tp`)."""


class ArgumentList:
    """SGLang's command line, as a list that answers and grows.

    Args:
        argv: the arguments without Photon's flags. A leading bare word is the model path, as in
            `sglang serve MODEL`.

    Raises:
        UsageError: the file behind `--config` is missing, or is no YAML mapping.
    """

    def __init__(self, argv: Iterable[str]) -> None:
        items = list(argv)
        if items and not items[0].startswith("-"):
            items.insert(0, MODEL_PATH[0])
        self.items = items
        self._from_file = _read_config(items)

    def has(self, *flags: str) -> bool:
        """Whether any of the flags is given, here or in the configuration file."""
        return any(_means(item, flags) for item in self.items) or any(
            flag in self._from_file for flag in flags
        )

    def value(self, *flags: str) -> str | None:
        """The last value given for a flag or its aliases, or None.

        Raises:
            UsageError: the flag is last on the line, without a value.
        """
        found = next((self._from_file[flag] for flag in flags if flag in self._from_file), None)
        for index, item in enumerate(self.items):
            if _means(item, flags):
                found = item.partition("=")[2] if "=" in item else self._following(index)
        return found

    def number(self, *flags: str, default: int) -> int:
        """The value of a numeric flag.

        Raises:
            UsageError: the value is not a whole number.
        """
        text = self.value(*flags)
        try:
            return default if text is None else int(text)
        except ValueError:
            raise UsageError(f"{flags[0]} is {text!r}", "Give a whole number") from None

    def add_default(self, flag: str, *values: str) -> bool:
        """Put a flag in front unless it is given; True if it was put.

        In front, so that a spelling that is not recognised here still wins in SGLang's parser.
        """
        if self.has(flag):
            return False
        self.items[:0] = [flag, *values]
        return True

    def replace(self, flags: tuple[str, ...], value: str) -> None:
        """Give a flag one value, in place of all that stand for it or its aliases."""
        kept: list[str] = []
        skip = False
        for item in self.items:
            if skip:
                skip = False
            elif _means(item, flags):
                skip = "=" not in item
            else:
                kept.append(item)
        self.items = [flags[0], value, *kept]

    def _following(self, index: int) -> str:
        if index + 1 == len(self.items):
            raise UsageError(f"{self.items[index]} has no value", "Put its value behind it")
        return self.items[index + 1]


def _means(item: str, flags: tuple[str, ...]) -> bool:
    word = item.split("=", 1)[0]
    return word in flags or (
        len(word) >= SHORTEST
        and word.startswith("--")
        and any(flag.startswith(word) for flag in flags)
    )


def _read_config(items: list[str]) -> dict[str, str]:
    """Flags and values of the configuration file, `{"--port": "30000"}`; empty without one."""
    if CONFIG not in items[:-1]:
        return {}
    path = Path(items[items.index(CONFIG) + 1])
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{CONFIG} {path} cannot be read ({reason})", "Give a YAML file") from None
    if not isinstance(content, dict):
        raise UsageError(f"{CONFIG} {path} is not a mapping", "Write it as lines of `flag: value`")
    flags = {"--" + str(key).replace("_", "-"): str(value) for key, value in content.items()}
    ours = [flag for flag in flags if flag.startswith("--photon")]
    if ours:
        raise UsageError(
            f"{CONFIG} {path} sets {ours[0]}", "Give Photon's flags on the command line"
        )
    return flags
