"""Golden tests: names, weights, losses, token ids and predictions stay those of version 0.3.0.

tests/golden/files.tar.xz was written by commit 05efffa: a corpus, a model pretrained on it for ten updates
(configs/pretrain/tiny_512.yaml at d = 16), four prepared tables, the classifiers that `linformer finetune` trained on
them, an export, an imported WordPiece model and a GPT-2 BPE. tests/golden/expected.json holds the expected values;
LINFORMER_RECORD_GOLDEN=1 writes it anew, which is right only where a change of them is intended.

Floating-point results depend on the processor. They are compared to the last bit on the processor that recorded them,
and within a tolerance elsewhere.
"""

import hashlib
import json
import os
import re
import shutil
import tarfile
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from fairseq.optim import OPTIMIZER_REGISTRY
from fairseq.optim.lr_scheduler import LR_SCHEDULER_REGISTRY
from fairseq.tasks import TASK_REGISTRY

from fairseq_linformer import LinformerRobertaModel
from tests.helpers import ROOT
from tests.helpers.commands import run

FOLDER = ROOT / "tests" / "golden"
EXPECTED = FOLDER / "expected.json"
RECORD = bool(os.environ.get("LINFORMER_RECORD_GOLDEN"))

SIZES = {"encoder_layers": 2, "encoder_embed_dim": 24, "encoder_ffn_embed_dim": 40, "encoder_attention_heads": 3}
SIZES |= {"projected_length": 8, "max_positions": 64, "dropout": 0.1}
WINDOW = {"projection": "split-pool", "linformer_window": 8, "value_residual": True}

MODELS = {
    "linformer, no sharing": {"sharing": "none"},
    "linformer, headwise": {"sharing": "headwise", "local_conv": 3},
    "linformer, key-value": {"sharing": "key-value", "encoder_normalize_before": True},
    "linformer, layerwise": {"sharing": "layerwise", "adaptive_length": True},
    "near_and_far": WINDOW,
    "softmax": {"attention": "softmax"},
    "softmax, rotary": {"attention": "softmax", "positions": "rotary", "value_residual": True},
    "longformer": {"attention": "longformer", "longformer_window": 4},
    "alternating": {"attention": "alternating", "alternating_window": 4},
    "reformer": {"attention": "reformer", "reformer_chunk_length": 4, "reformer_hashes": 2, "attention_dropout": 0.0},
    "performer": {"attention": "performer", "performer_features": 10, "attention_dropout": 0.0},
}

TASKS = ("animals", "numbers", "classes", "words")  # a class, a number, several classes, a class per word


def processor() -> str:
    """Return what results to the last bit depend on: the processor's model, its instructions and PyTorch."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.is_file() else ""
    model = re.search(r"model\s*: (.*)\nmodel name\s*: (.*)", text)
    return " ".join([*(model.groups() if model else ()), torch.backends.cpu.get_cpu_capability(), torch.__version__])


@pytest.fixture(scope="module")
def golden():
    """Return a function that compares a value with the recorded one, or records it."""
    values = json.loads(EXPECTED.read_text()) if EXPECTED.is_file() else {}
    if RECORD:
        values["processor"] = processor()

    def compare(name, value, exact=True, tolerance=None):
        if RECORD:
            values[name] = value
        elif tolerance is not None and values["processor"] != processor():
            assert np.allclose(value, values[name], rtol=tolerance, atol=tolerance)
        elif exact or values["processor"] == processor():
            assert value == values[name]

    yield compare
    if RECORD:
        lines = [f"{json.dumps(name)}: {json.dumps(value, sort_keys=True)}" for name, value in sorted(values.items())]
        EXPECTED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(FOLDER / "files.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def digest(*arrays) -> str:
    """Return a hash of arrays or tensors, of their shapes and types."""
    total = hashlib.sha256()
    for array in map(np.asarray, arrays):
        total.update(f"{array.dtype} {array.shape}".encode())
        total.update(array.tobytes())
    return total.hexdigest()[:16]


def build(options: dict) -> torch.nn.Module:
    dictionary = Dictionary()
    for number in range(96):
        dictionary.add_symbol(f"w{number}")
    task = Namespace(source_dictionary=dictionary, max_positions=lambda: 64)
    torch.manual_seed(0)
    return MODEL_REGISTRY["linformer_roberta"].build_model(Namespace(**SIZES, **options), task)


@pytest.mark.parametrize("name", MODELS)
def test_state_dict_initial_weights_and_twenty_losses(golden, name):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = build(MODELS[name])
    state = model.state_dict()
    golden(f"{name}: shapes", {key: list(value.shape) for key, value in state.items()})
    golden(f"{name}: weights", digest(*state.values()), exact=False)

    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(20):
        tokens = torch.randint(4, 100, (2, 64), generator=generator)
        tokens[1, 50:] = 1
        masked = (torch.rand(tokens.shape, generator=generator) < 0.2) & (tokens != 1)
        logits, _ = model(tokens.masked_fill(masked, 3), masked_tokens=masked)
        loss = torch.nn.functional.cross_entropy(logits, tokens[masked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.set_num_threads(threads)
    golden(f"{name}: losses", losses, tolerance=1e-3)


def continued(files: Path, folder: str, *stops: int) -> dict:
    """Continue the pretrained run up to each number of updates, and return its last checkpoint."""
    shutil.copytree(files / "pretrained", files / folder)
    words = ["--config-dir", ROOT / "configs/pretrain", "--config-name", "tiny_512", "task.data=corpus"]
    sizes = {"encoder_layers": 2, "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 32, "encoder_attention_heads": 2}
    sizes |= {"projected_length": 8, "local_conv": 3, "max_positions": 32}
    words += [f"model.{option}={value}" for option, value in sizes.items()]
    words += ["dataset.batch_size=4", "dataset.num_workers=0", "common.cpu=true", "common.seed=1"]
    words += ["lr_scheduler.warmup_updates=2", "lr_scheduler.total_num_update=20", f"checkpoint.save_dir={folder}"]
    for updates in stops:
        run("fairseq-hydra-train", *words, f"optimization.max_update={updates}", cwd=files)
    return torch.load(files / folder / "checkpoint_last.pt", weights_only=True)


@pytest.mark.slow
def test_a_run_of_version_0_3_0_is_continued(golden, files):
    straight, resumed = continued(files, "straight", 20), continued(files, "resumed", 13, 20)
    assert straight["model"].keys() == resumed["model"].keys()
    assert all(torch.equal(value, resumed["model"][name]) for name, value in straight["model"].items())
    golden("continued: weights", digest(*straight["model"].values()), exact=False)
    golden("continued: validation loss", straight["extra_state"]["val_loss"], tolerance=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", ["corpus", "gpt2", "wordpiece"])
def test_token_ids(golden, files, vocabulary, tmp_path):
    texts = ("--train", files / "difficult.txt", "--valid", files / "difficult.txt")
    words = (*texts, "--tokenizer", files / vocabulary, "--out", "out")
    run("linformer", "prepare", "corpus", *words, cwd=tmp_path)
    dataset = load_indexed_dataset(str(tmp_path / "out/train"))
    golden(f"{vocabulary}: ids", [len(dataset), digest(*(dataset[i].numpy() for i in range(len(dataset))))])


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_predictions_and_exported_logits(golden, files, task, tmp_path):
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    run_folder, data = files / "finetune" / task / "seed1", ("--data", files / "tasks" / task)
    words = ("--input", files / f"{task}.jsonl", "--to", "jsonl", *data)
    printed = run("linformer", "predict", run_folder, *words, cwd=tmp_path)
    rows = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    key = next(key for key in ("score", "labels", "label") if key in rows[0])
    assert len(rows) == 120
    golden(f"{task}: predictions", [row[key] for row in rows[:20]], tolerance=1e-3 if key == "score" else None)

    run("linformer", "export", run_folder, "--out", "exported", *data, cwd=tmp_path)
    auto = AutoModelForTokenClassification if task == "words" else AutoModelForSequenceClassification
    model = auto.from_pretrained(tmp_path / "exported", trust_remote_code=True).eval()
    tokens = torch.arange(4, 34).view(2, 15)
    with torch.no_grad():
        logits = model(tokens).logits.flatten()[:8]
    golden(f"{task}: logits", [round(value, 4) for value in logits.tolist()], tolerance=1e-3)


@pytest.mark.slow
def test_an_export_of_version_0_3_0_is_imported(files, tmp_path):
    from safetensors.torch import load_file

    run("linformer", "import", files / "exported" / "pretrained", "--out", "imported", cwd=tmp_path)
    hub = LinformerRobertaModel.from_pretrained(str(tmp_path / "imported"))
    weights = load_file(files / "exported" / "pretrained" / "model.safetensors")
    embeddings = hub.model.encoder.sentence_encoder.embed_tokens.weight
    assert torch.equal(embeddings, weights["linformer_roberta.embed_tokens.weight"])
    tokens = torch.arange(4, 34).view(2, 15)
    original = LinformerRobertaModel.from_pretrained(
        str(files / "pretrained"), "checkpoint_last.pt", str(files / "corpus")
    )
    with torch.no_grad():
        assert torch.allclose(hub.eval().model(tokens)[0], original.eval().model(tokens)[0], atol=1e-5)


def test_registered_names_configurations_verbs_and_flags(golden):
    registries = (ARCH_MODEL_REGISTRY, TASK_REGISTRY, CRITERION_REGISTRY, OPTIMIZER_REGISTRY, LR_SCHEDULER_REGISTRY)
    ours = [
        name
        for registry in registries
        for name, value in registry.items()
        if value.__module__.startswith("fairseq_linformer")
    ]
    golden("registered", sorted(ours))
    golden("configurations", sorted(str(path.relative_to(ROOT)) for path in (ROOT / "configs").rglob("*.yaml")))

    help_text = run("linformer", "--help", cwd=ROOT)
    verbs = re.findall(r"^  ((?:prepare )?[a-z]+)  ", help_text, re.MULTILINE)
    flags = {verb: run("linformer", *verb.split(), "--help", cwd=ROOT) for verb in verbs}
    golden("flags", {verb: sorted(set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))) for verb, text in flags.items()})


def test_model_options(golden):
    """An option that a configuration or a checkpoint may name stays, with its default."""
    config = MODEL_DATACLASS_REGISTRY["linformer_roberta"]()
    golden("model options", {name: repr(value) for name, value in sorted(vars(config).items())})
