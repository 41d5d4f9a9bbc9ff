"""Uses exported folders as a stranger would: with transformers, and without fairseq. A program of its own.

    python tests/hf/check_exported.py FOLDER...

Each folder holds, beside the export, reference.pt: tokens and the logits that fairseq gives for them.
"""

import sys
import tempfile
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoTokenizer, pipeline

TASKS = ("MaskedLM", "SequenceClassification", "TokenClassification", "MultipleChoice", "QuestionAnswering")
AUTO = {task: getattr(transformers, f"AutoModelFor{task}") for task in TASKS}
PIPELINES = {"MaskedLM": "fill-mask", "SequenceClassification": "text-classification"}


def load(auto, folder, **options):
    """The model, which must lack nothing."""
    trusted = {"trust_remote_code": True, "output_loading_info": True}
    model, said = auto.from_pretrained(folder, **trusted, **options)
    assert not said["missing_keys"] and not said["mismatched_keys"], (folder, said)
    return model.eval()


def difference(model, reference):
    tokens = reference["tokens"]
    logits, expected = model(tokens, attention_mask=tokens.ne(1).long()).logits, reference["logits"]
    if hasattr(model, "words"):  # whose pieces have the logits of the word
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
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0}
    check_training(load(AUTO[kind], folder, **none), reference)
    check_saving_again(AUTO[kind], folder, reference)
    AutoModel.from_pretrained(folder, trust_remote_code=True)
    if config.model_type == "linformer_roberta":
        check_what_is_drawn(kind, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    assert tokenizer.model_max_length == reference["longest"]
    if kind in PIPELINES:
        named = pipeline(PIPELINES[kind], model=folder, trust_remote_code=True)
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


def check_what_is_drawn(kind, folder):
    """Nothing of a model is what memory held, which here is NaN."""
    torch.use_deterministic_algorithms(True)
    for task in (kind, "MultipleChoice", "QuestionAnswering"):
        options = {"local_conv": 3, "value_residual": True, "ignore_mismatched_sizes": True}
        model = AUTO[task].from_pretrained(folder, trust_remote_code=True, **options)
        assert all(tensor.isfinite().all() for tensor in model.state_dict().values()), (folder, task)
    torch.use_deterministic_algorithms(False)


def check_saving_again(auto, folder, reference):
    with tempfile.TemporaryDirectory() as again:
        load(auto, folder).save_pretrained(again)
        with torch.no_grad():
            assert difference(load(auto, again), reference) < 1e-5, folder


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        check(folder)
    assert not any(sys.modules.get(name) for name in ("fairseq", "fairseq_linformer"))
    print(f"transformers {transformers.__version__}: {len(sys.argv) - 1} folders")
