"""Promises of the structure: imports go one way, engine -> retrieval, models, cache, composition -> kernels -> torch.

Kernels and retrieval know nothing of models, the cache knows bytes and identities only, the evaluation uses what users
use, and no package for GPUs is needed to import anything.
"""

import ast
import os
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[2] / "linearkv"


class Import(NamedTuple):
    """One import statement's target, as far down as it can be read: a module, or a name in one."""

    importer: str
    line: int
    module: str
    name: str | None
    at_import_time: bool

    def __str__(self):
        target = self.module if self.name is None else f"{self.module}.{self.name}"
        return f"{self.importer} (line {self.line}) imports {target}"


def modules():
    """Dotted name -> file of every module of LinearKV; kernels, retrieval and eval are links and followed."""
    found = {}
    for folder, _, files in os.walk(PACKAGE, followlinks=True):
        for file in sorted(files):
            path = Path(folder, file)
            if path.suffix == ".py":
                parts = ("linearkv", *path.relative_to(PACKAGE).with_suffix("").parts)
                found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imported_by_call(node):
    """The module that a call of `import_module("...")` or `__import__("...")` names."""
    function = getattr(node.func, "attr", getattr(node.func, "id", ""))
    argument = node.args[0] if node.args else None
    if function in ("import_module", "__import__") and isinstance(argument, ast.Constant):
        return str(argument.value)
    return None


def imports_of(name, path):
    """Every import of a module, those inside functions and under `if TYPE_CHECKING` included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = []

    def visit(node, at_import_time):
        if isinstance(node, ast.Import):
            found.extend(Import(name, node.lineno, alias.name, None, at_import_time) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            found.extend(Import(name, node.lineno, module, alias.name, at_import_time) for alias in node.names)
        elif isinstance(node, ast.Call) and (module := imported_by_call(node)):
            found.append(Import(name, node.lineno, module, None, at_import_time))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            at_import_time = False
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            at_import_time = False
        for child in ast.iter_child_nodes(node):
            visit(child, at_import_time)

    visit(tree, True)
    return found


ALL = {name: (path, imports_of(name, path)) for name, path in modules().items()}


def own_imports(package):
    """Imports of LinearKV's own modules by the modules of one of its packages."""
    within = f"linearkv.{package}"
    return [
        found
        for name, (_, all_found) in ALL.items()
        if name == within or name.startswith(f"{within}.")
        for found in all_found
        if found.module == "linearkv" or found.module.startswith("linearkv.")
    ]


def target(found):
    """The module that an import reaches: `from linearkv import errors` reaches linearkv.errors."""
    full = f"{found.module}.{found.name}"
    return full if full in ALL else found.module


def reaches(found, *packages):
    return any(target(found) == p or target(found).startswith(f"{p}.") for p in packages)


ALLOWED = {
    "kernels": ("linearkv.kernels", "linearkv.errors"),
    "retrieval": ("linearkv.retrieval", "linearkv.errors"),
    "errors": (),
    "states": ("linearkv.kernels",),
    "composition": ("linearkv.kernels", "linearkv.states", "linearkv.errors"),
}
FORBIDDEN = {
    "cache": ("linearkv.models", "linearkv.retrieval", "linearkv.engine", "linearkv.eval"),
    "models": ("linearkv.retrieval", "linearkv.cache", "linearkv.engine", "linearkv.eval"),
    "vllm": ("linearkv.retrieval", "linearkv.engine", "linearkv.eval"),
}


@pytest.mark.parametrize("package", ALLOWED)
def test_a_lower_package_imports_only_what_lies_below_it(package):
    wrong = [str(found) for found in own_imports(package) if not reaches(found, *ALLOWED[package])]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", FORBIDDEN)
def test_models_and_cache_know_neither_each_other_nor_what_lies_above(package):
    wrong = [str(found) for found in own_imports(package) if reaches(found, *FORBIDDEN[package])]
    assert not wrong, "\n".join(wrong)


def test_only_the_engine_and_what_lies_beside_it_import_the_engine():
    """Nothing that the engine is made of may need it."""
    parts = ("kernels", "retrieval", "cache", "models", "composition", "states", "storage", "identity", "tenants")
    wrong = [
        str(found)
        for package in parts
        for found in own_imports(package)
        if reaches(found, "linearkv.engine", "linearkv.eval", "linearkv.cli")
    ]
    assert not wrong, "\n".join(wrong)


# What users use: names that these packages export.
PUBLIC_PACKAGES = (
    *("linearkv", "linearkv.models", "linearkv.retrieval", "linearkv.kernels"),
    *("linearkv.cache", "linearkv.identity", "linearkv.tenants", "linearkv.client", "linearkv.vllm"),
)


def exported(module):
    """Names that a package's `__init__.py` offers: `__all__`, or else its public top-level names."""
    tree = ast.parse(ALL[module][0].read_text(encoding="utf-8"))
    names, listed = set(), None
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            ids = {t.id for t in targets if isinstance(t, ast.Name)}
            if "__all__" in ids and node.value is not None:
                constants = [n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant)]
                listed = {value for value in constants if isinstance(value, str)}
                # `[*NAMES, ...]`: the keys or items of the collection that is spread.
                spread = {n.value.id for n in ast.walk(node.value) if isinstance(n, ast.Starred)}
                for other in tree.body:
                    if isinstance(other, ast.Assign) and any(getattr(t, "id", "") in spread for t in other.targets):
                        items = other.value.keys if isinstance(other.value, ast.Dict) else other.value.elts
                        listed |= {item.value for item in items}
            names |= ids
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return {name for name in names if not name.startswith("_")} if listed is None else listed


def is_public(found):
    module, name = found.module, found.name
    if reaches(found, "linearkv.eval"):
        return True
    if module == "linearkv" and f"linearkv.{name}" in (*PUBLIC_PACKAGES, "linearkv.eval", "linearkv.errors"):
        return True
    if name is None:
        return module in PUBLIC_PACKAGES
    if module == "linearkv.errors":  # what the public functions raise
        return not name.startswith("_")
    if module.startswith("linearkv.kernels"):
        # One public function per operation: `linearkv.kernels.<operation>` and its switch, not the versions behind it.
        parts = module.split(".")[2:]
        return len(parts) <= 1 and not name.startswith("_") and f"{module}.{name}" not in ALL
    return module in PUBLIC_PACKAGES and name in exported(module)


def test_the_evaluation_uses_only_what_users_can_use():
    wrong = [str(found) for found in own_imports("eval") if not is_public(found)]
    assert not wrong, "\n".join(wrong)


LMCACHE_MODULE = "linearkv.cache.lmcache_store"
VLLM_MODULES = ("linearkv.vllm.connector", "linearkv.vllm.metrics")
"""Whose classes are vLLM's to make: vLLM imports the first when an engine asks for it."""
GPU_PACKAGES = ("triton", "fla", "causal_conv1d", "vllm", "lmcache", "flashinfer")


def is_triton_module(module):
    """A Triton version of an operation, or what they share: imported when it is first run."""
    return module == "linearkv.kernels.halves" or (
        module.startswith("linearkv.kernels.") and module.endswith(".kernel")
    )


def test_nothing_imports_packages_for_gpus_or_servers_when_it_is_imported():
    """They are optional, slow, and fail at import on machines without a device: only a function that needs one may."""
    wrong = [
        str(found)
        for module, (_, all_found) in ALL.items()
        for found in all_found
        if found.at_import_time
        and found.module.split(".")[0] in GPU_PACKAGES
        and not (is_triton_module(module) and found.module.split(".")[0] == "triton")
        and not (module == LMCACHE_MODULE and found.module.split(".")[0] == "lmcache")
        and not (module in VLLM_MODULES and found.module.split(".")[0] == "vllm")
    ]
    assert not wrong, "\n".join(wrong)


def test_who_imports_what_vllm_makes_is_among_it():
    wrong = [
        str(f)
        for module, (_, found) in ALL.items()
        for f in found
        if module not in VLLM_MODULES and reaches(f, *VLLM_MODULES)
    ]
    assert not wrong, "\n".join(wrong)


def test_lmcache_is_in_one_module_which_is_imported_by_who_uses_it():
    users = {module for module, (_, found) in ALL.items() if any(f.module.split(".")[0] == "lmcache" for f in found)}
    assert users == {LMCACHE_MODULE}
    assert not [f for _, found in ALL.values() for f in found if f.at_import_time and reaches(f, LMCACHE_MODULE)]


def test_nothing_imports_a_triton_version_when_it_is_imported():
    wrong = [
        str(found)
        for module, (_, all_found) in ALL.items()
        for found in all_found
        if found.at_import_time and is_triton_module(target(found)) and not is_triton_module(module)
    ]
    assert not wrong, "\n".join(wrong)
    assert sum(is_triton_module(module) for module in ALL) == 4


def test_the_rules_see_every_package():
    """A package that is not found would pass every rule."""
    for package in ("kernels", "retrieval", "eval", "models", "cache"):
        assert any(name.startswith(f"linearkv.{package}.") for name in ALL), package
