"""Whether wheel and sdist hold what they should and nothing else.

``python -m tests.dist_contents FOLDER``, after ``uv build``; `make dist` calls it.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parents[1]
INSTALLED = {"privpipe": ROOT / "privpipe", "privpipe_flows": ROOT / "privpipe_flows"}
EXTRAS = {"s3", "docs", "dev"}


def list_modules() -> set[str]:
    """What the wheel must hold: all of both packages but caches and pages of design."""
    return {
        f"{package}/{path.relative_to(folder).as_posix()}"
        for package, folder in INSTALLED.items()
        for path in folder.rglob("*")
        if path.is_file()
        and (path.suffix != ".md" or path.name == "PROOF.md")
        and "__pycache__" not in path.parts
    }


def find_problems(folder: Path) -> list[str]:
    """One line per thing that is missing or too much."""
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        about = next(name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(file.read(about).decode())
    info = about.partition("/")[0]
    held = {name for name in names if not name.startswith(f"{info}/")}
    problems = [f"the wheel lacks {name}" for name in sorted(list_modules() - held)]
    problems += [f"the wheel holds {name}" for name in sorted(held - list_modules())]
    if f"{info}/licenses/LICENSE" not in names:
        problems.append("the wheel lacks its licence")
    if metadata["License-Expression"] != "Apache-2.0":
        problems.append("the metadata name no licence")
    if not EXTRAS <= set(metadata.get_all("Provides-Extra", [])):
        problems.append(f"extras: {metadata.get_all('Provides-Extra')}")
    [version] = re.findall(r'__version__ = "(.*)"', (ROOT / "privpipe/__init__.py").read_text())
    if metadata["Version"] != version:
        problems.append(f"privpipe.__version__ is {version}, the wheel's {metadata['Version']}")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    needed = {*list_modules(), "pyproject.toml", "README.md", "LICENSE"}
    return problems + [f"the sdist lacks {name}" for name in sorted(needed - inside)]


if __name__ == "__main__":
    found = find_problems(Path(sys.argv[1]))
    print("\n".join(found) or "Wheel and sdist hold what they should.")
    sys.exit(bool(found))
