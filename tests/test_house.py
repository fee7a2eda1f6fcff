"""The house keeps its own rules: pins, floors, sizes, and a README that tells the truth."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = (ROOT / "README.md").read_text()

# Lowest first. A module imports its own floor's package or lower floors, never a higher one.
FLOORS = [
    ["flashkit.runtime", "flashkit.contracts", "flashkit.masks"],
    ["flashkit.reference", "flashkit.online", "flashkit.backward", "flashkit.cost"]
    + ["flashkit.memory", "flashkit.native"],
    ["flashkit.kernels"],
    ["flashkit.attention", "flashkit.decoding", "flashkit.fp8"],
    ["flashkit.ring"],
    ["flashkit.trace", "flashkit.faults", "flashkit.diagnosis", "flashkit.exercises"]
    + ["flashkit.kernel_trace", "flashkit.doctor", "flashkit.bench"],
    ["flashkit.widgets", "flashkit.cli"],
    ["autograder"],
]
ONLY_IN = {
    "triton": "flashkit.kernels",
    "plotly": "flashkit.widgets",
    "ipywidgets": "flashkit.widgets",
    "anywidget": "flashkit.widgets",
}
MODULE_LINES, FUNCTION_LINES, KERNEL_LINES = 250, 30, 90


def tracked(*patterns: str) -> list[Path]:
    """Files that git knows or would add, so that a new file counts before its first commit."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    out = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / line for line in out.splitlines() if (ROOT / line).is_file()]


def modules() -> dict[str, ast.Module]:
    """Every module of the two packages by dotted name, parsed; not the catalogue's answers."""
    trees = {}
    for path in tracked("flashkit/*.py", "autograder/*.py", ":!autograder/catalogue/*/*"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        trees[name] = ast.parse(path.read_text())
    return trees


MODULES = modules()


def imports(name: str) -> set[str]:
    """The dotted names that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(MODULES[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def floor(name: str) -> int | None:
    """The number of the floor that a module stands on."""
    for level, packages in enumerate(FLOORS):
        if any(inside(name, package) for package in packages):
            return level
    return None


def pins(lines: list[str]) -> set[str]:
    """Requirements without spaces and with one kind of quotes, to be compared."""
    return {re.sub(r"\s", "", line).replace('"', "'").lower() for line in lines}


def direct_dependencies() -> list[str]:
    extras = PROJECT["optional-dependencies"].values()
    return [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]


def test_every_direct_dependency_is_pinned_exactly():
    for line in direct_dependencies():
        assert re.fullmatch(r"[\w.-]+==[\w.]+(; .+)?", line), line


def test_environment_yml_has_the_pins_of_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip = environment["dependencies"]
    assert pins(pip["pip"]) == pins(direct_dependencies())
    assert f"python {PROJECT['requires-python']}" in conda


def test_the_lock_has_the_pins_of_pyproject():
    lock = pins((ROOT / "requirements.lock").read_text().splitlines())
    assert pins(direct_dependencies()) <= lock
    assert not [line for line in lock if "://" in line or line.startswith("-")]


def test_every_package_that_is_imported_is_a_direct_dependency():
    declared = {re.match(r"[\w.-]+", line).group().lower() for line in direct_dependencies()}
    distributions = importlib.metadata.packages_distributions()
    for name in MODULES:
        for top in {target.split(".")[0] for target in imports(name)} & set(distributions):
            owners = {owner.lower() for owner in distributions[top]}
            own = {"flashattention-workbook"}
            assert owners & (declared | own), f"{name} imports {top}, of {owners}: declare it"


def test_every_module_of_flashkit_has_a_floor():
    assert [name for name in MODULES if floor(name) is None and name != "flashkit"] == []


@pytest.mark.parametrize("name", sorted(set(MODULES) - {"flashkit"}))
def test_floors(name):
    for target in imports(name):
        level = floor(target)
        assert level is None or level <= floor(name), f"{name} imports {target}, a floor above"
        for library, home in ONLY_IN.items():
            at_home = inside(name, home) or not inside(target, library)
            assert at_home, f"{name} imports {target}: only {home} may"
    if inside(name, "flashkit.kernels"):
        oracle = [x for x in imports(name) if inside(x, "flashkit.reference")]
        assert not oracle, "a kernel must not import the oracle it is compared with"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_sizes(name):
    tree = MODULES[name]
    lines = max((node.end_lineno for node in tree.body), default=0)
    assert lines <= MODULE_LINES, f"{name} has {lines} lines"
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            jit = any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)
            size = node.end_lineno - node.lineno + 1
            limit = KERNEL_LINES if jit else FUNCTION_LINES
            assert size <= limit, f"{name}.{node.name} has {size} lines, at most {limit}"


def readme_tree() -> list[str]:
    """Paths of the tree in the README, folders joined by their indent."""
    block = re.search(r"```text\n(.+?)```", README, re.S).group(1)
    folder, paths = "", []
    for line in block.splitlines():
        indent, entries = re.match(r"( *)([^\s,]+(?:, [^\s,]+)*)", line).groups()
        if not indent:
            folder = entries if entries.endswith("/") else ""
        paths += [(folder if indent else "") + entry for entry in entries.split(", ")]
    return paths


@pytest.mark.parametrize("path", readme_tree())
def test_the_readme_names_what_exists(path):
    assert (ROOT / path).exists()


def test_the_readme_names_every_module_of_flashkit():
    top = {path.relative_to(ROOT).parts[1] for path in tracked("flashkit/*.py")}
    named = {path.split("/")[1] for path in readme_tree() if path.startswith("flashkit/")}
    assert top - {"__init__.py"} == named - {""}


def test_the_readme_is_one_screen():
    assert len(README.splitlines()) <= 75


@pytest.mark.parametrize("command", re.findall(r"^make (\w+)", README, re.M))
def test_the_readme_commands_are_verbs_of_the_makefile(command):
    assert re.search(rf"^{command}:.*##", (ROOT / "Makefile").read_text(), re.M)


def test_no_tracked_file_names_a_path_of_one_machine():
    pattern = re.compile(r"(?<![\w.$}])/(?:work|farm|home|root|Users|opt)/\w|\.library")
    found = []
    for path in tracked():
        if path == Path(__file__):
            continue
        text = path.read_text(errors="ignore")
        found += [f"{path.relative_to(ROOT)}: {hit}" for hit in pattern.findall(text)]
    assert found == []


BLOCKED = """
import sys
sys.modules.update(dict.fromkeys(["triton", "plotly", "ipywidgets", "anywidget"]))
import flashkit
"""


def test_flashkit_imports_without_triton_plotly_and_ipywidgets():
    subprocess.run([sys.executable, "-c", BLOCKED], cwd=ROOT, check=True, timeout=60)
