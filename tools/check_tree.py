"""The rules of the tree that no linter knows, in one place.

    python tools/check_tree.py [ROOT]

1. Files stay under 400 lines.
2. Imports flow one way: records → slots, rows, ipc, ingest, observe → loop → plugin →
   launch_server. Rooms of one rank do not know each other. What uses the product comes last.
3. Only `sglang_photon/upstream/` imports sglang.
4. Some modules load without torch, in everything they import when they are imported.
5. No path of somebody's machine stands in a file.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "sglang_photon"
MAX_LINES = 400

# A room imports rooms of a lower rank only. What is not listed is free: errors and config (used by
# all), reference (stand-ins for missing kernels) and upstream (the seam, one module per room).
RANKS = {
    "records": 0,
    "slots": 1,
    "rows": 1,
    "ipc": 1,
    "ingest": 1,
    "observe": 1,
    "loop": 2,
    "plugin": 3,
    "launch_server": 4,
    "profiling": 5,
    "batch": 6,
    "bench": 6,
    "demo": 6,
    "cli": 7,
}
SEAM = f"{PACKAGE}.upstream"
# Never import torch, not even inside a function.
NEVER_TORCH = re.compile(rf"{PACKAGE}\.(slots\.state|ipc\.handle_cache|profiling(\..+)?)")
# Load without torch; their functions may import it.
LATE_TORCH = re.compile(rf"{PACKAGE}(\.(cli|config|errors|reference|batch(\..+)?))?")

SOURCE_FOLDERS = (PACKAGE, "profiling", "bench", "tests", "tools")
SKIPPED = re.compile(r"\..*cache|\.git|\.venv|\.hypothesis|__pycache__|build|dist|.*\.egg-info")
# The home of the made-up user ada is nobody's.
MACHINE_PATH = re.compile(
    r"(?<![\w.~$}])/(?:home|root|tmp|Users|work|var/tmp)/(?!\.cache|ada\b)[\w.]|\.\./shared\b"
)


@dataclass(frozen=True)
class Import:
    """One imported name: the module, the line, and whether it loads with the importing module."""

    module: str
    line: int
    at_load: bool


def files(folder: Path) -> Iterator[Path]:
    """Every file once: what is not part of the project is skipped, links are not followed."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_symlink() or SKIPPED.fullmatch(path.name):
            continue
        if path.is_dir():
            yield from files(path)
        else:
            yield path


def source_files(root: Path) -> Iterator[Path]:
    """Every Python file of the package, its tests and its tools."""
    for folder in SOURCE_FOLDERS:
        yield from (path for path in files(root / folder) if path.suffix == ".py")


def module_name(root: Path, path: Path) -> str:
    """`profiling/record.py` is `sglang_photon.profiling.record`."""
    parts = list(path.relative_to(root).with_suffix("").parts)
    if parts[0] in ("profiling", "bench"):
        parts.insert(0, PACKAGE)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def under(module: str, package: str) -> bool:
    """Whether a module is a package or lies in it."""
    return module == package or module.startswith(package + ".")


def for_types_only(node: ast.AST) -> bool:
    """Whether this is `if TYPE_CHECKING:`."""
    if not isinstance(node, ast.If):
        return False
    return ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def named(node: ast.AST, package: str) -> list[str]:
    """The modules that one node imports; `from x import y` may mean x.y, so both are named."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parts = package.split(".")
            base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [base])])
        return [base, *(f"{base}.{alias.name}" for alias in node.names)]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called, argument = ast.unparse(node.func), node.args[0].value
        if called.endswith(("import_module", "__import__")) and isinstance(argument, str):
            return [argument]
    return []


def imports(path: Path, module: str) -> list[Import]:
    """What a file imports, in functions and for type checking too."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: list[Import] = []

    def visit(node: ast.AST, at_load: bool) -> None:
        line = getattr(node, "lineno", 0)
        found.extend(Import(name, line, at_load) for name in named(node, package))
        lazy = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, at_load and not lazy and not for_types_only(node))

    visit(ast.parse(path.read_text(encoding="utf-8"), str(path)), True)
    return found


def room(module: str) -> str:
    """`sglang_photon.slots.state` is in the room `slots`."""
    return module.removeprefix(PACKAGE + ".").split(".")[0] if under(module, PACKAGE) else ""


def direction_problems(module: str, found: list[Import]) -> Iterator[tuple[int, str]]:
    """Rules 2 and 3 for one module of the package."""
    own = room(module)
    for item in found:
        other = room(item.module)
        if under(item.module, "sglang") and not under(module, SEAM):
            yield item.line, f"{module} imports {item.module}: only {SEAM} may"
        elif own != other and own in RANKS and RANKS.get(other, -1) >= RANKS[own]:
            yield item.line, f"{module} imports {item.module}: {other} does not come before {own}"


def with_parents(module: str) -> Iterator[str]:
    """A module and the packages whose `__init__` runs before it."""
    parts = module.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def torch_chain(module: str, graph: dict[str, list[Import]]) -> list[str]:
    """How loading a module comes to load torch: the modules on the way; empty when it does not."""
    strict = NEVER_TORCH.fullmatch(module)
    queue = [[name] for name in with_parents(module)]
    seen: set[str] = set()
    while queue:
        chain = queue.pop(0)
        if chain[-1] in seen or chain[-1] not in graph:
            continue
        seen.add(chain[-1])
        for item in graph[chain[-1]]:
            if under(item.module, "torch") and (item.at_load or (strict and chain[-1] == module)):
                return [*chain, item.module]
            if item.at_load:
                queue.extend([*chain, name] for name in with_parents(item.module))
    return []


def import_problems(root: Path) -> Iterator[str]:
    """Rules 2 to 4 for the whole package."""
    graph: dict[str, list[Import]] = {}
    for path in source_files(root):
        module = module_name(root, path)
        where = path.relative_to(root)
        graph[module] = imports(path, module)
        if under(module, PACKAGE) or where.parts[0] == "tools":
            for line, problem in direction_problems(module, graph[module]):
                yield f"{where}:{line}: {problem}"
    for module in sorted(graph):
        bound = NEVER_TORCH.fullmatch(module) or LATE_TORCH.fullmatch(module)
        chain = torch_chain(module, graph) if bound else []
        if chain:
            yield f"{module} must load without torch: {' → '.join(chain)}"


def length_problems(root: Path) -> Iterator[str]:
    """Rule 1."""
    for path in source_files(root):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines >= MAX_LINES:
            yield f"{path.relative_to(root)}: {lines} lines, must stay under {MAX_LINES}: split it"


def path_problems(root: Path) -> Iterator[str]:
    """Rule 5, for every text file of the checkout."""
    for path in files(root):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            match = MACHINE_PATH.search(line)
            if match:
                yield f"{path.relative_to(root)}:{number}: a path of one machine: {match.group()}…"


def problems(root: Path) -> list[str]:
    """Every broken rule, one line each, beginning with the file."""
    return [*length_problems(root), *import_problems(root), *path_problems(root)]


def main(arguments: list[str]) -> int:
    """Exit code: 1 when a rule is broken."""
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    found = problems(root)
    print("\n".join(found) if found else "check_tree: all rules kept")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
