"""The sdist and the wheel: what they contain and require, and that torch alone is enough."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest

import fairseq_stochattn
import runner
from thorough import THOROUGH

ROOT = runner.ROOT
VERSION = fairseq_stochattn.__version__
LEFT_OUT = (".git", ".venv", "build", "runs", "demo-run", "__pycache__", "*.egg-info", ".*_cache")
MAKE = "make wheel installs the wheel into an environment without fairseq"


def run(*command: object, cwd: Path, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1", **env},
    )


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist from a copy of the clone; return it unpacked."""
    folder = tmp_path_factory.mktemp("clone")
    clone = folder / "clone"
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(*LEFT_OUT))
    built = run(sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", folder, cwd=clone)
    assert built.returncode == 0, built.stderr[-2000:]
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """Build the wheel from the sdist, as pip does, but with the installed setuptools."""
    flags = ("--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    built = run(sys.executable, "-m", "pip", "wheel", "-q", *flags, ".", "-w", "out", cwd=sdist)
    assert built.returncode == 0, built.stderr[-2000:]
    (found,) = (sdist / "out").glob("*.whl")
    return found


def files_below(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_sdist_has_what_the_tests_need(sdist: Path) -> None:
    assert sdist.name == f"fairseq_stochattn-{VERSION}"
    for folder in ("fairseq_stochattn", "data-prep", "docs", "examples", "tests", ".ci"):
        assert files_below(sdist / folder) >= files_below(ROOT / folder), folder
    for name in ("Makefile", "constraints.txt", "mkdocs.yml", "CHANGELOG.md", ".pytest.ini"):
        assert (sdist / name).is_file(), name


def parse_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"fairseq_stochattn-{VERSION}.dist-info/METADATA")
    return Parser().parsestr(text.decode())


def test_the_wheel_requires_no_fairseq(wheel: Path) -> None:
    found = parse_metadata(wheel)
    assert found["Version"] == VERSION
    required = [x for x in found.get_all("Requires-Dist") if "extra ==" not in x]
    assert sorted(re.match(r"[\w-]+", x)[0] for x in required) == ["numpy", "torch", "tqdm"]
    of_fairseq = [x for x in found.get_all("Requires-Dist") if 'extra == "fairseq"' in x]
    assert any(x.startswith("fairseq-fixed") for x in of_fairseq)
    assert {"fairseq", "data", "analysis", "huggingface"} <= set(found.get_all("Provides-Extra"))


def test_the_wheel_has_all_modules_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        scripts = archive.read(f"fairseq_stochattn-{VERSION}.dist-info/entry_points.txt").decode()
    package = {f"fairseq_stochattn/{name}" for name in files_below(ROOT / "fairseq_stochattn")}
    data_prep = {f"fairseq_stochattn/data_prep/{name}" for name in files_below(ROOT / "data-prep")}
    assert packed == package | data_prep
    for name, module in re.findall(r"^stochattn-(\w+) = ([\w.]+):main$", scripts, re.M):
        assert f"{module.replace('.', '/')}.py" in packed, name
    assert scripts.count("stochattn-") >= 10


def requirements(*names: str) -> set[str]:
    """Return the names of these distributions and of all that they require, without extras."""
    found: set[str] = set()
    wanted = list(names)
    while wanted:
        name = wanted.pop().lower()
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # not needed on this platform
            continue
        if name not in found:
            found.add(name)
            wanted += [re.match(r"[\w.-]+", x)[0] for x in required if "extra ==" not in x]
    return found


def link_packages(names: set[str], folder: Path) -> None:
    """Make the installed files of some distributions importable from ``folder``."""
    for name in names:
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files if file.parts[0] != ".."}:
            source = Path(distribution.locate_file(top))
            if source.exists() and not (folder / top).exists() and top != "__pycache__":
                (folder / top).symlink_to(source)


IN_PYTHON = """
import importlib.util, torch, fairseq_stochattn as sa
assert not any(map(importlib.util.find_spec, ("fairseq", "transformers", "sacrebleu")))
layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
model = torch.nn.Sequential(torch.nn.TransformerEncoder(layer, 2), torch.nn.Linear(8, 3))
x = torch.randn(4, 5, 8)
for method in (sa.BABN(), sa.BAM(), sa.Alignment(), sa.ASA(), sa.CellDropout(p="0.1")):
    sa.convert(model, method)
    optimizer = sa.Repulsive(torch.optim.AdamW(model.parameters()), model)
    (model.train()(x).logsumexp(-1).mean() + sa.collect_losses(model, step=1)).backward()
    optimizer.step()
    if method.method in ("babn", "bam"):
        assert sa.uncertainty(sa.sample(model, 3, x).probabilities).entropy.shape == (4, 5)
    sa.revert(model, exact=False)
print(sa.__version__)
"""


@pytest.mark.skipif(not THOROUGH, reason=MAKE)
def test_it_works_without_fairseq(wheel: Path, tmp_path: Path) -> None:
    """Only what the wheel requires is there; commands say what to install."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    scripts = tmp_path / "env" / "bin"
    (packages,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    link_packages(requirements("torch", "numpy", "tqdm"), packages)
    pip = (sys.executable, "-m", "pip", "--python", scripts / "python", "install", "--no-deps")
    installed = run(*pip, "--no-index", "-q", wheel, cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr[-2000:]
    done = run(scripts / "python", "-c", IN_PYTHON, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{VERSION}\n"), done.stderr[-2000:]
    for name in ("methods", "evaluate", "plot"):
        refused = run(scripts / f"stochattn-{name}", cwd=tmp_path)
        assert refused.returncode == 1
        assert refused.stderr == (
            "fairseq_stochattn: this command needs fairseq: "
            "pip install 'fairseq_stochattn[fairseq]'\n"
        )
    numbers = ("numbers", "--out", "numbers", "--train", 9, "--valid", 4, "--test", 4)
    prepared = run(scripts / "stochattn-prepare", *numbers, cwd=tmp_path)
    assert prepared.returncode == 0, prepared.stderr[-2000:]
