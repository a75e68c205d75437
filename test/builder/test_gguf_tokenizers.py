"""Tokenizers written from GGUF metadata give the ids that llama.cpp gives, and give the text back."""

from __future__ import annotations

import pytest
from ids_checksum import checksum
from mixed_strings import mixed_strings, read_fixture
from tokenizers import Tokenizer
from vocabularies import byte_level_file, sentencepiece_file

from edgellm_ros.builder.gguf_file import GGUFFile
from edgellm_ros.builder.gguf_metadata import GGUFMetadata
from edgellm_ros.builder.gguf_tokenizer import write_tokenizer_files
from edgellm_ros.builder.pre_tokenizers import PRE_TOKENIZERS
from edgellm_ros.builder.wheel_models import WHEEL_MODELS
from edgellm_ros.errors import MissingPackageError

STRINGS = mixed_strings()
FOUND = read_fixture("token_checksums.json")  # [names of ways, a checksum for each string]
CHECKSUMS = {name: sums for names, sums in FOUND for name in names}
# llama.cpp reads \p{M} of these patterns in a way of its own, which shows in one string with marks on a Latin letter
OWN_READING = ("gpt-4o", "llama4", "kanana2", "tekken")


def tokenizer_of(name, folder):
    path = folder / "vocabulary.gguf"
    if name in WHEEL_MODELS:
        try:
            files = WHEEL_MODELS[name].files()
        except MissingPackageError:
            pytest.skip(f"could not import '{WHEEL_MODELS[name].packages[0].replace('-', '_')}'")
    elif name.startswith("sentencepiece"):
        files = [sentencepiece_file(path, name.endswith("True"))]
    else:
        files = [byte_level_file(path, name)]
    file = GGUFFile(*files)
    content = write_tokenizer_files(GGUFMetadata(file.metadata, str(files[0])))["tokenizer.json"]
    file.close()
    return Tokenizer.from_str(content.decode())


def compare(name, folder):
    tokenizer = tokenizer_of(name, folder)
    ids = [tokenizer.encode(string, add_special_tokens=False).ids for string in STRINGS]
    sums = zip(map(checksum, ids), CHECKSUMS[name], strict=True)
    different = [string for string, (found, wanted) in zip(STRINGS, sums, strict=True) if found != wanted]
    assert len(different) <= (1 if name in OWN_READING else 0), different[:5]
    if name != "sentencepiece True":  # puts a blank before texts, and after tokens that are matched whole
        for string, numbers in zip(STRINGS, ids, strict=True):
            assert tokenizer.decode(numbers, skip_special_tokens=False) == string


def test_there_are_a_thousand_different_strings_and_ids_for_all_ways():
    assert len(set(STRINGS)) == len(STRINGS) > 950
    assert set(CHECKSUMS) == {*PRE_TOKENIZERS, *WHEEL_MODELS, "sentencepiece False", "sentencepiece True"}


@pytest.mark.parametrize("name", [names[0] for names, _ in FOUND if names[0] not in WHEEL_MODELS])
def test_ids_are_those_of_llama_cpp(name, tmp_path):
    compare(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CHECKSUMS if name in WHEEL_MODELS])
def test_ids_of_published_models_are_those_of_llama_cpp(name, tmp_path):
    compare(name, tmp_path)
