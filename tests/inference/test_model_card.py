"""A model card says what it is given, whatever names it is given."""

import re

import pytest

from dragoman.config import TranslationSettings
from dragoman.inference.export_folder import ExportInfo
from dragoman.inference.model_card import code, header, yaml_text
from dragoman.wording import in_markdown

NAMES = ["no", "yes", "null", "1.5", "en: de", "x\n- evil: true", '"', "'", "\\", "# x", "[a](b)"]
NAMES += ["<b>", "a|b", "`", "``", "*a*", "\x7f\x85\u2028", "中文", "😀", "{{x}}", "---", "!!int 3"]


@pytest.mark.parametrize("name", NAMES)
def test_the_header_of_a_card_is_read_back_as_it_was_meant(name: str) -> None:
    yaml = pytest.importorskip("yaml")
    versions = {"dragoman": "0.1.0"}
    info = ExportInfo(name, (), "int8", name, "de", False, 9, TranslationSettings(), versions)
    card = header(info)
    assert card.startswith("---\n")
    front, page = card.removeprefix("---\n").split("\n---\n", 1)
    assert yaml.safe_load(front) == {
        "language": [name, "de"],
        "library_name": "ctranslate2",
        "pipeline_tag": "translation",
    }
    assert len([line for line in page.splitlines() if line.startswith("#")]) == 1


@pytest.mark.parametrize("name", NAMES)
def test_names_are_shown_and_mean_nothing(name: str) -> None:
    for shown in (in_markdown(name), code(name)):
        assert "\n" not in shown
        assert "<b>" not in shown or shown.startswith("`")
    assert not re.search(r"(?<!\\)[\[\]*#_|]", re.sub(r"\\\\", "", in_markdown(name)))
    assert yaml_text(name).isprintable() or not name.isprintable()
