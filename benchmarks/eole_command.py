"""Eole's own command where what it imports and never uses in training cannot be installed.

    pip install --target build/eole --no-deps --python-version 3.12 --only-binary=:all: \
        --platform manylinux2014_x86_64 --platform any eole==0.6.4 pydantic==2.14.3 \
        pydantic-core==2.50.4 annotated-types typing-inspection typing-extensions pyyaml regex \
        torch-optimi six configargparse protobuf==7.36.2
    PYTHONPATH=build/eole python benchmarks/eole_command.py train -c CONFIG.yaml

That folder is 20 MB and needs torch, NumPy, safetensors and huggingface_hub beside it. Modules for
serving, tokenising and the like are empty where they are absent. Of pyonmttok training uses the
vocabulary alone; a dictionary takes its place.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from unittest.mock import MagicMock

NEVER_USED = {
    *("PIL", "aiohttp", "ahocorasick", "ctranslate2", "datasets", "fastapi", "fasttext", "httpx"),
    *("huggingface_hub", "jinja2", "pandas", "psutil", "pyonmttok", "rapidfuzz", "requests"),
    *("rich", "sacrebleu", "sentencepiece", "spacy", "starlette", "subword_nmt", "tensorboard"),
    *("tokenizers", "torchcodec", "tqdm", "uvicorn", "waitress"),
}


class Nothing:
    """Finds the modules that are never used, and loads them empty."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_empty = name.split(".")[0] in NEVER_USED
        return ModuleSpec(name, self, is_package=True) if is_empty else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = MagicMock(name=spec.name)
        module.__spec__, module.__path__ = spec, []
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


class Vocabulary:
    """What training uses of pyonmttok's: tokens to numbers, the unknown to `default_id`."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.ids_to_tokens = list(tokens)
        self.tokens_to_ids = {token: place for place, token in enumerate(tokens)}
        self.default_id = 0

    def __len__(self) -> int:
        return len(self.ids_to_tokens)

    def __contains__(self, token: str) -> bool:
        return token in self.tokens_to_ids

    def __getitem__(self, token: str) -> int:
        return self.lookup_token(token)

    def __call__(self, tokens: Sequence[str]) -> list[int]:
        known, unknown = self.tokens_to_ids, self.default_id
        return [known.get(token, unknown) for token in tokens]

    def add_token(self, token: str) -> None:
        self.tokens_to_ids.setdefault(token, len(self.ids_to_tokens))
        if self.tokens_to_ids[token] == len(self.ids_to_tokens):
            self.ids_to_tokens.append(token)

    def lookup_token(self, token: str) -> int:
        return self.tokens_to_ids.get(token, self.default_id)

    def lookup_index(self, place: int) -> str:
        return self.ids_to_tokens[place]


def build_vocabulary(
    tokens: Sequence[str], maximum_size: int = 0, special_tokens: Sequence[str] = ()
) -> Vocabulary:
    """The special tokens first, as pyonmttok has them."""
    unique = list(dict.fromkeys((*special_tokens, *tokens)))
    return Vocabulary(unique[:maximum_size] if maximum_size > 0 else unique)


# Not in `main`: the processes that make Eole's batches import this file, and need it as well.
sys.meta_path.append(Nothing())  # The last: what is installed is found before.
pyonmttok = import_module("pyonmttok")
if isinstance(pyonmttok, MagicMock):
    pyonmttok.build_vocab_from_tokens = build_vocabulary

if __name__ == "__main__":
    from eole.bin.main import main

    main()
