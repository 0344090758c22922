"""SGLang's argument list, read and extended before SGLang is imported.

SGLang's own parser cannot be asked yet: which kernels it may import depends on the device that the
arguments choose. Only flags that Photon has to know are read here; everything else passes through.
"""

from __future__ import annotations

from collections.abc import Iterable

from sglang_photon.errors import UsageError

MODEL_PATH = ("--model-path", "--model")


class ArgumentList:
    """SGLang's command line, as a list that answers and grows.

    Args:
        argv: the arguments without Photon's flags. A leading bare word is the model path, as in
            `sglang serve MODEL`.
    """

    def __init__(self, argv: Iterable[str]) -> None:
        items = list(argv)
        if items and not items[0].startswith("-"):
            items.insert(0, MODEL_PATH[0])
        self.items = items

    def has(self, *flags: str) -> bool:
        """Whether any of the flags is given, in either spelling (`--a b`, `--a=b`)."""
        return any(item.split("=", 1)[0] in flags for item in self.items)

    def value(self, *flags: str) -> str | None:
        """The last value given for a flag or its aliases, or None.

        Raises:
            UsageError: the flag is last on the line, without a value.
        """
        found = None
        for index, item in enumerate(self.items):
            flag, equals, value = item.partition("=")
            if flag in flags:
                found = value if equals else self._following(index)
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
        """Append a flag unless it is given; True if it was appended."""
        if self.has(flag):
            return False
        self.items += [flag, *values]
        return True

    def replace(self, flags: tuple[str, ...], value: str) -> None:
        """Put another value behind every occurrence of a flag or its aliases."""
        replaced: list[str] = []
        skip = False
        for item in self.items:
            if skip:
                skip = False
                continue
            flag, equals, _ = item.partition("=")
            if flag in flags:
                replaced += [flags[0], value]
                skip = not equals
            else:
                replaced.append(item)
        self.items = replaced

    def _following(self, index: int) -> str:
        if index + 1 == len(self.items):
            raise UsageError(f"{self.items[index]} has no value", "Put its value behind it")
        return self.items[index + 1]
