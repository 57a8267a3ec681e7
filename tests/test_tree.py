"""The tree in the README names every file, with the first line that the file says of itself.

`python tests/test_tree.py` writes it anew.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- tree: python tests/test_tree.py -->\n", "<!-- end of tree -->\n"
WIDTH = 26


def render_tree() -> str:
    lines = ["src/dragoman/", *_folder(ROOT / "src" / "dragoman", 1)]
    lines += [
        "configs/                    recipes",
        "benchmarks/                 one script per figure in docs/results.md",
        "tests/                      mirrors src/dragoman, plus distributed/ and end_to_end/",
    ]
    return "".join(f"    {line}\n" for line in lines)


def _folder(folder: Path, depth: int) -> list[str]:
    """Its files, then its folders, each with the first line of its docstring."""
    lines = []
    files = [path for path in sorted(folder.glob("*.py")) if not path.name.startswith("__")]
    for path in files:
        lines.append(f"{'  ' * depth}{path.name}".ljust(WIDTH) + f"  {_first_line(path)}")
    for path in sorted(folder.iterdir()):
        if (path / "__init__.py").exists():
            says = _first_line(path / "__init__.py")
            lines.append(f"{'  ' * depth}{path.name}/".ljust(WIDTH) + f"  {says}")
            lines += _folder(path, depth + 1)
    return lines


def _first_line(path: Path) -> str:
    says = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first = says.splitlines()[0].removesuffix(".") if says else ""
    return first[:1].lower() + first[1:] if first[1:2].islower() else first


def test_the_readme_names_every_file() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = page[page.index(BEGIN) + len(BEGIN) : page.index(END)]
    assert shown.strip("\n") == render_tree().strip("\n"), "run `python tests/test_tree.py`"


if __name__ == "__main__":
    readme = ROOT / "README.md"
    before, rest = readme.read_text(encoding="utf-8").split(BEGIN)
    readme.write_text(f"{before}{BEGIN}\n{render_tree()}\n{END}{rest.split(END)[1]}")
