import tomllib
from pathlib import Path
from typing import get_args

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dragoman.config import TrackerKind

PROJECT = Path(__file__).resolve().parents[1]


def test_the_lock_pins_all_that_builds_runs_and_tests_the_project() -> None:
    lines = (PROJECT / "requirements.lock").read_text().splitlines()
    pinned = {canonicalize_name(name): version for name, version in (x.split("==") for x in lines)}
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    project = settings["project"]
    # What `pip install 'dragoman[...]'` is advised for.
    assert set(get_args(TrackerKind)) - {"tensorboard"} <= project["optional-dependencies"].keys()
    needed = [
        *settings["build-system"]["requires"],
        *project["dependencies"],
        *(
            line
            for name, group in project["optional-dependencies"].items()
            # Trackers bring many libraries of their own; their tests are skipped without them.
            if name not in get_args(TrackerKind)
            for line in group
        ),
    ]
    for requirement in map(Requirement, needed):
        if requirement.name != project["name"]:
            assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)])
