import tomllib
from pathlib import Path
from typing import get_args

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dragoman.config import TrackerKind

PROJECT = Path(__file__).resolve().parents[1]


def read_lock(name: str) -> dict[str, str]:
    pins = (line.split("==") for line in (PROJECT / name).read_text().splitlines())
    return {canonicalize_name(package): version for package, version in pins}


def test_the_lock_pins_all_that_builds_runs_and_tests_the_project() -> None:
    # Trackers bring many libraries of their own; their tests are left out without them.
    pinned = read_lock("requirements-libraries.lock") | read_lock("requirements.lock")
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    project = settings["project"]
    # What `pip install 'dragoman[...]'` is advised for.
    assert set(get_args(TrackerKind)) - {"tensorboard"} <= project["optional-dependencies"].keys()
    needed = [
        *settings["build-system"]["requires"],
        *project["dependencies"],
        *(line for group in project["optional-dependencies"].values() for line in group),
    ]
    for requirement in map(Requirement, needed):
        if requirement.name != project["name"]:
            assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)])
