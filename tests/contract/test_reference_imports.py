"""What SGLang asks of `sgl_kernel`, read from its source, against what the stand-in answers."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from sglang_photon.reference import kernels, pinning

LOAD_EVERYTHING = """
import logging
logging.basicConfig(level=logging.WARNING)
from sglang.srt.managers.multimodal_processor import import_processors
from sglang.srt.models.registry import ModelRegistry
import_processors("sglang.srt.multimodal.processors")
architectures = set(ModelRegistry.models)
assert {"Qwen2ForCausalLM", "Qwen2_5_VLForConditionalGeneration"} <= architectures
assert {"Grok1ForCausalLM", "Qwen3_5ForConditionalGeneration"} <= architectures
"""


@dataclass(frozen=True)
class Site:
    """One place upstream that names a kernel.

    Attributes:
        name: ``sgl_kernel.NAME`` or ``sgl_kernel.MODULE.NAME``.
        where: file and line.
        conditions: the `if` tests around it, as source.
        has_fallback: it stands in a `try` that handles ImportError, or is for a type checker.
        in_function: it runs when something is called, not while the module is loaded.
    """

    name: str
    where: str
    conditions: tuple[str, ...]
    has_fallback: bool
    in_function: bool


@dataclass
class Scan(ast.NodeVisitor):
    """Collects imports of `sgl_kernel` and reads of `torch.ops.sgl_kernel` from one file."""

    file: str
    imports: list[Site]
    ops: list[Site]
    probes: set[str]

    def __post_init__(self) -> None:
        self.conditions: list[str] = []
        self.tries = 0
        self.functions = 0

    def add(self, sites: list[Site], name: str, node: ast.stmt | ast.expr) -> None:
        for_types = "TYPE_CHECKING" in self.conditions
        sites.append(
            Site(
                name=name,
                where=f"{self.file}:{node.lineno}",
                conditions=tuple(self.conditions),
                has_fallback=self.tries > 0 or for_types,
                in_function=self.functions > 0 or for_types,
            )
        )

    def visit_If(self, node: ast.If) -> None:
        self.conditions.append(ast.unparse(node.test))
        self.generic_visit(node)
        self.conditions.pop()

    def visit_Try(self, node: ast.Try) -> None:
        handled = {ast.unparse(h.type) if h.type else "Exception" for h in node.handlers}
        guards = any(name in text for name in ("ImportError", "Exception") for text in handled)
        self.tries += guards
        for statement in node.body:
            self.visit(statement)
        self.tries -= guards
        for part in (*node.handlers, *node.orelse, *node.finalbody):
            self.visit(part)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.functions += 1
        self.generic_visit(node)
        self.functions -= 1

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.partition(".")[0] == kernels.PACKAGE:
                self.add(self.imports, alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level == 0 and (node.module or "").partition(".")[0] == kernels.PACKAGE:
            for alias in node.names:
                self.add(self.imports, f"{node.module}.{alias.name}", node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if ast.unparse(node.value) == "torch.ops.sgl_kernel":
            self.add(self.ops, node.attr, node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        probed = [ast.unparse(argument) for argument in node.args[:1]]
        if ast.unparse(node.func) == "hasattr" and probed == ["torch.ops.sgl_kernel"]:
            self.probes.add(str(ast.literal_eval(node.args[1])))
        self.generic_visit(node)


def upstream_files(mention: str) -> Iterator[tuple[str, str]]:
    """Path and text of the installed SGLang's files that contain `mention`."""
    spec = find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations
    root = Path(spec.submodule_search_locations[0])
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if mention in text:
            yield str(path.relative_to(root)), text


@cache
def upstream() -> Scan:
    """Everything that upstream asks for, except in its own tests."""
    total = Scan(file="", imports=[], ops=[], probes=set())
    for file, text in upstream_files(kernels.PACKAGE):
        if not file.startswith("test/"):
            Scan(file, total.imports, total.ops, total.probes).visit(ast.parse(text))
    assert total.imports
    assert total.ops
    return total


def withheld(name: str) -> str | None:
    """The entry of `WITHHELD` that an import of `name` runs into."""
    parts = name.split(".")
    prefixes = (".".join(parts[:end]) for end in range(2, len(parts) + 1))
    return next((prefix for prefix in prefixes if prefix in kernels.WITHHELD), None)


def test_every_import_is_answered_or_withheld() -> None:
    for site in upstream().imports:
        parts = site.name.split(".")
        if len(parts) > 2 and not withheld(site.name):
            assert parts[1] in kernels.SUBMODULES, site


def test_names_are_withheld_only_where_upstream_has_a_fallback() -> None:
    """Or inside a function, where the error comes with the call: Marlin's mixture of experts."""
    for site in upstream().imports:
        if withheld(site.name):
            assert site.has_fallback or site.in_function, site


def test_nothing_is_withheld_in_vain() -> None:
    asked = {withheld(site.name) for site in upstream().imports}
    assert set(kernels.WITHHELD) <= asked


def test_no_submodule_is_offered_in_vain() -> None:
    asked = {part for site in upstream().imports for part in site.name.split(".")[1:2]}
    assert asked >= kernels.SUBMODULES


def test_ops_read_while_a_module_loads_are_defined() -> None:
    """Reads behind a test for AMX, or for another vendor's device, are not reached here."""
    read = {
        site.name
        for site in upstream().ops
        if not site.in_function
        and not any("amx" in condition for condition in site.conditions)
        and "sycl" not in site.where
    }
    assert read == set(kernels.OPS_READ_AT_IMPORT)


def test_probed_ops_stay_unanswered() -> None:
    probes = upstream().probes
    assert "convert_weight_packed" in probes
    assert not probes & {*kernels.OPS_READ_AT_IMPORT, *kernels.HOST_OPS}


def test_every_factory_asked_for_pinned_memory_is_covered() -> None:
    asked = {
        call.func.attr
        for _, text in upstream_files("pin_memory=")
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and ast.unparse(call.func.value) == "torch"
        and any(keyword.arg == "pin_memory" for keyword in call.keywords)
    }
    assert asked == set(pinning.FACTORIES)


@pytest.mark.timeout(240)
def test_no_model_or_processor_is_forgotten_because_of_kernels() -> None:
    environ = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1"}
    code = f"from sglang_photon import reference\nreference.install()\n{LOAD_EVERYTHING}"
    run = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    ignored = [line for line in run.stderr.splitlines() if "Ignore import error" in line]
    assert not [line for line in ignored if kernels.PACKAGE in line or "torchvision" in line]
