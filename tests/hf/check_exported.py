"""Program that uses exported folders with transformers alone, without fairseq.

    python tests/hf/check_exported.py FOLDER...

Each folder holds an export and reference.pt: tokens, and their logits in fairseq.
"""

import sys
import tempfile
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoTokenizer

TASKS = ("MaskedLM", "SequenceClassification", "TokenClassification", "MultipleChoice", "QuestionAnswering")
AUTO = {task: getattr(transformers, f"AutoModelFor{task}") for task in TASKS}
PIPELINES = {"MaskedLM": "fill-mask", "SequenceClassification": "text-classification"}


def load(auto, folder, **options):
    """Load a model, for which no weights may be missing."""
    trusted = {"trust_remote_code": True, "output_loading_info": True}
    model, report = auto.from_pretrained(folder, **trusted, **options)
    assert not report["missing_keys"] and not report["mismatched_keys"], (folder, report)
    return model.eval()


def difference(model, reference):
    tokens = reference["tokens"]
    logits, expected = model(tokens, attention_mask=tokens.ne(1).long()).logits, reference["logits"]
    if hasattr(model, "words"):  # all pieces of a word have the logits of its first
        expected = model.returned(expected, tokens)
    real = tokens.ne(1) if logits.dim() == 3 else slice(None)
    return float((logits - expected)[real].abs().max())


def check(folder):
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    kind = next(kind for kind in AUTO if config.architectures[0].endswith(kind))
    reference = torch.load(Path(folder, "reference.pt"))
    with torch.no_grad():
        model = load(AUTO[kind], folder)
        assert difference(model, reference) < 1e-5, folder
        halved = load(AUTO[kind], folder, torch_dtype=torch.bfloat16)
        assert next(halved.parameters()).dtype == torch.bfloat16
        assert difference(halved, reference) < 0.2, folder
    without_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0}
    check_training(load(AUTO[kind], folder, **without_dropout), reference)
    with tempfile.TemporaryDirectory() as saved, torch.no_grad():
        model.save_pretrained(saved)
        assert difference(load(AUTO[kind], saved), reference) < 1e-5, folder
    AutoModel.from_pretrained(folder, trust_remote_code=True)
    if config.model_type == "linformer_roberta":
        check_missing_weights(kind, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    assert tokenizer.model_max_length == reference["longest"]
    if kind in PIPELINES:
        named = transformers.pipeline(PIPELINES[kind], model=folder, trust_remote_code=True)  # imported only here
        assert named(f"the {tokenizer.mask_token}" if kind == "MaskedLM" else "the dog")


def check_training(model, reference):
    """Gradients are the same with and without recomputation; the embedding grows. The model has no dropout."""
    tokens = reference["tokens"]

    def gradients():
        model.zero_grad()
        model(tokens, attention_mask=tokens.ne(1).long()).logits.float().square().mean().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    plain = gradients()
    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for one, other in zip(plain, gradients(), strict=True):
        torch.testing.assert_close(one, other)
    model.gradient_checkpointing_disable()
    model.eval()
    before = model.config.vocab_size
    model.resize_token_embeddings(before + 8)
    logits = model(tokens, attention_mask=tokens.ne(1).long()).logits
    assert model.config.vocab_size == before + 8
    if model.get_output_embeddings() is not None:
        assert logits.shape[-1] == before + 8


def check_missing_weights(kind, folder):
    """All weights are initialized; uninitialized memory is NaN here."""
    torch.use_deterministic_algorithms(True)
    for task in (kind, "MultipleChoice", "QuestionAnswering"):
        options = {"local_conv": 3, "value_residual": True, "ignore_mismatched_sizes": True}
        model = AUTO[task].from_pretrained(folder, trust_remote_code=True, **options)
        assert all(tensor.isfinite().all() for tensor in model.state_dict().values()), (folder, task)
    torch.use_deterministic_algorithms(False)


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        check(folder)
    assert not any(sys.modules.get(name) for name in ("fairseq", "fairseq_linformer"))
    print(f"transformers {transformers.__version__}: {len(sys.argv) - 1} folders")
