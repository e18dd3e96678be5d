"""Dependencies point downwards only, and the package imports nothing it does not declare."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from importlib import resources
from pathlib import Path

import dpjax

PACKAGE = Path(dpjax.__file__).parent

# A flag, though not of XLA, or a command to run.
FLAG = re.compile(r"(?<![\w-])--(?!xla)[a-z]|`dpjax [a-z]")

# Each room may import the rooms before it, and its own.
ROOMS = [
    "_checks",
    "_record",
    "_json",
    "_toml",
    "_files",
    "_states",
    "_interpreter",
    "_imports",
    "rules",
    "schedules",
    "twofloat",
    "devices",
    "noise",
    "sampling",
    "gradients",
    "batch_sums",
    "thresholds",
    "_contract",
    "hooks",
    "momentum",
    "adaclip",
    "mechanism",
    "privatize",
    "methods",
    "accounting",
    "fit",
    "nnx",
    "testing",
    "models",
    "data",
    "train",
    "audit",
    "papers",
    "cli",
    "__main__",
]


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Returns the full names of the modules a file imports, also `from dpjax import x`."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "dpjax":
            names |= {f"dpjax.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def files():
    return [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"]


def test_every_room_is_listed():
    assert {room(path) for path in files()} == set(ROOMS)


# A mechanism implements `Release` with functions that stand above it, and imports them when called.
UPWARDS = {("mechanism", "privatize")}
CORE = ROOMS[: ROOMS.index("nnx")]


def test_imports_point_downwards():
    for path in files():
        for name in imported(path):
            if name.startswith("dpjax."):
                own, below = room(path), name.split(".")[1]
                allowed = ROOMS.index(below) <= ROOMS.index(own) or (own, below) in UPWARDS
                assert allowed, f"{path} imports {name}"


def test_the_core_imports_neither_flax_nor_orbax_nor_rich():
    for path in files():
        if room(path) in CORE:
            found = {name.split(".")[0] for name in imported(path)} & {"flax", "orbax", "rich"}
            assert not found, f"{path} imports {found}"


def test_only_the_command_line_knows_the_papers():
    """What exists because a paper printed it is not part of the library."""
    for path in files():
        if room(path) not in ("papers", "cli"):
            found = {name for name in imported(path) if f"{name}.".startswith("dpjax.papers.")}
            assert not found, f"{path} imports {found}"


def test_rules_and_schedules_know_nothing_and_gradients_nothing_of_privacy():
    allowed = {"rules": {"_checks", "_record", "rules"}, "gradients": {"_checks", "_record"}}
    allowed["schedules"] = {"_checks", "_record", "schedules"}
    # What a batch looks like, how it is added up, and where.
    allowed["gradients"] |= {"gradients", "sampling", "twofloat", "devices"}
    for path in files():
        if room(path) in allowed:
            rooms = {n.split(".")[1] for n in imported(path) if n.startswith("dpjax.")}
            assert rooms <= allowed[room(path)], path


def test_privatize_and_accounting_know_the_mechanism_and_not_each_other():
    for own, others in (
        ("privatize", {"accounting", "methods"}),
        ("accounting", {"privatize", "methods", "momentum", "adaclip", "hooks"}),
    ):
        of_room = [path for path in files() if room(path) == own]
        rooms = {n.split(".")[1] for p in of_room for n in imported(p) if n.startswith("dpjax.")}
        assert "mechanism" in rooms
        assert not rooms & others, own


def texts(tree: ast.AST) -> set[str]:
    """Returns the strings in a file's code, the docstrings left out."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    said = {
        id(line.value)
        for node in ast.walk(tree)
        if isinstance(node, owners)
        for line in node.body
        if isinstance(line, ast.Expr)
    }
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said
    }


def test_only_the_command_line_speaks_of_flags():
    """A sentence may be written far from its `raise`, so that every string counts."""
    assert texts(ast.parse('"""--a"""\ndef f():\n    "--b"\n    raise E(f"{x} --c")')) == {" --c"}
    for path in files():
        if room(path) not in ("papers", "cli"):
            found = [text for text in texts(ast.parse(path.read_text())) if FLAG.search(text)]
            assert not found, f"{path} says {found}"


def test_no_two_classes_share_a_name():
    """Else a search for a class, or a traceback that names one, leads to the wrong file."""
    places = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].add(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert len(places) > 200
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


# These rooms alone may use an optional extra, where they need it.
EXTRAS = ("audit", "cli", "data", "models", "testing", "train")

# Where the package that is installed has another name than the one that is imported.
IMPORTED_AS = {"orbax_checkpoint": "orbax", "pillow": "PIL"}


def declared(lines: list[str]) -> set[str]:
    names = {line.split(">=")[0].replace("-", "_") for line in lines}
    return {IMPORTED_AS.get(name, name) for name in names}


def test_third_party_imports_are_declared():
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    needed = declared(project["dependencies"])
    optional = declared(
        [line for extra in project["optional-dependencies"].values() for line in extra]
    )
    for path in files():
        allowed = needed | optional if room(path) in EXTRAS else needed
        for name in imported(path):
            top = name.split(".")[0]
            if top not in sys.stdlib_module_names and top != "dpjax":
                assert top in allowed, f"{path} imports {top}"


def test_every_package_and_config_is_shipped():
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["tool"]["setuptools"]
    here = {path.parent for path in PACKAGE.rglob("__init__.py")}
    names = {".".join(path.relative_to(PACKAGE.parent).parts) for path in here}
    rooms = {
        f"dpjax.configs.{file.parent.name}" for file in PACKAGE.parent.glob("configs/*/*.toml")
    }
    assert sorted(project["packages"]) == sorted({*names, "dpjax.configs", *rooms})
    assert rooms <= set(project["package-data"])
    shipped = {path.name for path in resources.files("dpjax.configs").glob("*/*.toml")}
    assert shipped == {path.name for path in (PACKAGE.parent / "configs").rglob("*.toml")}


def test_importing_dpjax_starts_no_backend_and_warns_of_nothing():
    code = (
        "import dpjax, jax._src.xla_bridge as bridge; assert not bridge.backends_are_initialized()"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_the_core_loads_no_room_above_it_and_the_command_line_no_optional_extra():
    code = (
        "import sys, dpjax; assert not {f'dpjax.{r}' for r in ('models', 'data', 'train', 'cli')} "
        "& sys.modules.keys(); "
        "import dpjax.cli; assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
