"""The two distributions of the repository: what each wheel holds, and the product alone."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROOF = ("cordwood/sim/", "cordwood/chaos/", "cordwood/testing/", "cordwood/bench/sim.py")


def build(source: Path, out: Path) -> Path:
    """The wheel that hatchling makes of a folder with a pyproject.toml."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(out)],
        cwd=source,
        check=True,
        capture_output=True,
        timeout=120,
    )
    [wheel] = out.glob("*.whl")
    return wheel


def modules(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("product"))


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT / "proof", tmp_path_factory.mktemp("proof"))


def test_together_they_hold_each_module_once(product: Path, proof: Path):
    here = {str(path.relative_to(ROOT)) for path in (ROOT / "cordwood").rglob("*.py")}
    here.add("pyspark_cordwood.py")
    assert modules(product) | modules(proof) == here
    assert modules(product) & modules(proof) == set()


def test_the_product_has_nothing_of_the_proof(product: Path, proof: Path):
    assert [name for name in modules(product) if name.startswith(PROOF)] == []
    assert [name for name in modules(proof) if not name.startswith(PROOF)] == []


def test_the_fixture_s_entry_point_comes_with_the_proof_alone(product: Path, proof: Path):
    """pytest loads entry points of all it finds: one that cannot be imported ends every run."""
    for wheel, has in ((product, False), (proof, True)):
        with zipfile.ZipFile(wheel) as files:
            [name] = [each for each in files.namelist() if each.endswith("entry_points.txt")] or [
                ""
            ]
            text = files.read(name).decode() if name else ""
        assert ("cordwood.testing.plugin" in text) is has


@pytest.mark.parametrize("verb", ["sim run", "chaos", "verify x", "bench sim"])
def test_a_verb_of_the_proof_says_how_to_get_it(product: Path, tmp_path: Path, verb: str):
    with zipfile.ZipFile(product) as files:
        files.extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "cordwood", *verb.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "pip install 'cordwood[testing]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_product_alone_stores_and_reads(product: Path, tmp_path: Path):
    with zipfile.ZipFile(product) as files:
        files.extractall(tmp_path)
    program = (
        "import cordwood\n"
        "with cordwood.connect('data', wal_mib=16) as store:\n"
        "    store.append('a', b'1')\n"
        "    print([item.value for item in store.read('a')], cordwood.__file__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[b'1']")
    assert str(tmp_path) in done.stdout
