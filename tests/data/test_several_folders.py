"""Corpora of several folders: fairseq's colon form, and the folders of folders of version 0.3.0."""

import json
import logging
import re
from pathlib import Path

import pytest

from fairseq_linformer.data.prepare.corpus import prepare_corpus
from fairseq_linformer.data.subword_models import corpus_folders, load_tokenizer
from fairseq_linformer.errors import UserError
from fairseq_linformer.training.masked_lm import DynamicMaskedLMTask
from fairseq_linformer.training.masked_lm_options import DynamicMaskedLMConfig
from tests.helpers.inputs import sentences


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    """A folder of version 0.3.0: three prepared folders with one vocabulary."""
    folder = tmp_path_factory.mktemp("shards")
    out = folder / "corpus"
    for number in (1, 2, 3):
        text = folder / f"{number}.txt"
        text.write_text(sentences(100, seed=number))
        vocabulary = {"vocab_size": 286} if number == 1 else {"tokenizer": out / "shard1"}
        prepare_corpus([text], [text] if number == 1 else [], out / f"shard{number}", workers=1, **vocabulary)
    (out / "shards.json").write_text(json.dumps({"shards": [["1.txt"], ["2.txt"], ["3.txt"]]}))
    return out


def test_a_folder_of_version_0_3_0(shards):
    folders = [shards / f"shard{number}" for number in (1, 2, 3)]
    assert corpus_folders(shards) == folders and corpus_folders(folders[0]) == folders[:1]
    assert load_tokenizer(shards).is_in(folders[2])


def test_folders_of_two_vocabularies_are_rejected(shards, tmp_path):
    prepare_corpus([shards.parent / "2.txt"], [], tmp_path / "other", workers=1, vocab_size=287)
    config = DynamicMaskedLMConfig(data=f"{shards}/shard1:{tmp_path}/other", tokens_per_sample=32)
    with pytest.raises(UserError, match="other"):
        DynamicMaskedLMTask.setup_task(config).state_dict()


def test_a_training_reads_one_folder_per_epoch(shards, caplog):
    task = DynamicMaskedLMTask.setup_task(DynamicMaskedLMConfig(data=str(shards), tokens_per_sample=32, seed=1))
    with caplog.at_level(logging.INFO):
        for epoch in (1, 2, 3, 4):
            task.load_dataset("train", epoch=epoch)
        task.load_dataset("valid")
    read = re.findall(rf"examples from: {shards}/(shard\d/\w+)", caplog.text)
    assert read == ["shard1/train", "shard2/train", "shard3/train", "shard1/train", "shard1/valid"]
