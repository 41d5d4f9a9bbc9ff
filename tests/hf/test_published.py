"""Import of BERT and its variants, compared with transformers: hidden states, ids, heads, and export."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import transformers
from safetensors.torch import load_file, save_file
from scipy.stats import spearmanr
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast

from fairseq_linformer import LinformerRobertaModel
from fairseq_linformer.checkpoint import UNTRAINED, read_named_checkpoint
from fairseq_linformer.cli.export import load
from fairseq_linformer.convert import convert
from fairseq_linformer.data.prepare.examples import Example, encode_columns
from fairseq_linformer.data.subword_models import TOKENIZER_FILE, load_tokenizer
from fairseq_linformer.errors import UserError
from fairseq_linformer.hf.exporting import export
from fairseq_linformer.hf.importing import DRAWN, import_folder, write_json_tokenizer
from fairseq_linformer.hf.published import PAIRS_REMARK
from fairseq_linformer.hf.tokenizer import write_tokenizer
from fairseq_linformer.sentence_modules import read_sentence_modules
from fairseq_linformer.training.launch import pretraining_command
from tests.helpers.checkpoints import assert_same_weights
from tests.helpers.exports import HEAD, hub_of
from tests.helpers.inputs import difficult
from tests.helpers.stock import write_modules

MINILM = Path("~/.cache/linformer/all-MiniLM-L6-v2").expanduser()
WORDS = ("the", "dog", "sees", "un", "##believ", "##able", "house")
SENTENCES = ["the dog, unbelievable", "a house.", "Hé, dog!"]
N = 20
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 3}
BERT = {**SIZES, "hidden_size": 12, "intermediate_size": 20, "layer_norm_eps": 0.01, "type_vocab_size": 2}
DISTILBERT = {"n_layers": 2, "n_heads": 3, "dim": 12, "hidden_dim": 20}
AFTER_PADDING = {**BERT, "max_position_embeddings": N + 2, "pad_token_id": 1, "type_vocab_size": 1}

MODELS = [
    ("BertModel", BERT),
    ("BertForMaskedLM", {**BERT, "hidden_act": "gelu_new"}),
    ("BertForMaskedLM", {**BERT, "hidden_act": "relu", "tie_word_embeddings": False}),
    ("BertForSequenceClassification", BERT),
    ("DistilBertModel", {**DISTILBERT, "activation": "relu"}),
    ("DistilBertForMaskedLM", {**DISTILBERT, "sinusoidal_pos_embds": True}),
    ("DistilBertForSequenceClassification", DISTILBERT),
    ("RobertaForMaskedLM", AFTER_PADDING),
    ("XLMRobertaModel", AFTER_PADDING),
    ("CamembertForMaskedLM", {**AFTER_PADDING, "bos_token_id": 5}),
]


def word_pieces() -> PreTrainedTokenizerFast:
    """WordPiece with the special tokens between others, as in BERT, and an added token."""
    letters = [chr(number) for number in range(33, 127) if not chr(number).isupper()]
    names = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{x}" for x in letters), *WORDS]
    pieces = models.WordPiece({name: number for number, name in enumerate(names)}, unk_token="[UNK]")
    tokenizer = Tokenizer(pieces)
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([AddedToken("[E1]", special=True)])
    return named(tokenizer, *names[3:4], names[0], names[4], names[2], names[5])


def unigrams() -> PreTrainedTokenizerFast:
    """Unigram as in CamemBERT: <s> and </s> after others, and an added <mask> after all pieces."""
    letters = [chr(number) for number in range(33, 127)]
    names = ["<unk>", "<pad>", "▁", "<s>NOTUSED", "</s>", "<s>", *letters, "▁the", "▁dog", "es", "he", "▁hous", "th"]
    scores = [0.0, 0.0, -2.0, 0.0, 0.0, 0.0, *(-5.0 - number / 50 for number in range(len(letters)))]
    scores += [-3.0, -3.5, -3.2, -3.1, -4.0, -3.0]
    tokenizer = Tokenizer(models.Unigram(list(zip(names, scores, strict=True)), unk_id=0))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return named(tokenizer, "<s>", "<pad>", "</s>", "<unk>", "<mask>")


def lower_unigrams() -> PreTrainedTokenizerFast:
    tokenizer = unigrams()
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    return tokenizer


def bytes_in_pairs(first: bool) -> PreTrainedTokenizerFast:
    """Byte-level BPE with a space before the first word; its special tokens are first, as in RoBERTa, or last."""
    letters, special = sorted(pre_tokenizers.ByteLevel.alphabet()), ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = [*letters, "th", "the", "Ġthe"]
    names = [*special, *pieces, "<mask>"] if first else [*pieces, "<mask>", *special]
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the")]
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    return named(tokenizer, *special, "<mask>")


def named(tokenizer: Tokenizer, *special: str) -> PreTrainedTokenizerFast:
    names = ("cls_token", "pad_token", "sep_token", "unk_token", "mask_token")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **dict(zip(names, special, strict=True)))


def write_encoder(folder: Path, kind: str = "BertModel", options=BERT, tokenizer=None):
    """A model with random weights as transformers saves it; its embeddings have more rows than there are tokens."""
    model_class = getattr(transformers, kind)
    if tokenizer is None:
        tokenizer = unigrams() if options.get("max_position_embeddings") == N + 2 else word_pieces()
    tokenizer.save_pretrained(folder)
    sizes = {"max_position_embeddings": N, "vocab_size": len(tokenizer) + 3, **options}
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder)
    return model


def rows_of(folder: Path, texts: list[str]) -> torch.Tensor:
    """Return a padded batch of transformers, (B, n). The tokenizers of this test add no special tokens."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    first, last, pad = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    rows = [torch.tensor([first, *row[: N - 2], last]) for row in ids]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)


def our_rows(folder: Path, texts: list[str]) -> torch.Tensor:
    rows = [torch.tensor([0, *ids[: N - 2].tolist(), 2]) for ids in load_tokenizer(folder).encode(texts)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=1)


@torch.no_grad()
@pytest.mark.parametrize(("kind", "options"), MODELS)
def test_hidden_states_and_logits_equal_those_of_transformers(tmp_path, kind, options):
    model = write_encoder(tmp_path / "source", kind, options)
    if kind == "BertForMaskedLM":  # the first BERTs have names of TensorFlow
        file = tmp_path / "source/model.safetensors"
        weights = load_file(file)
        for name in [name for name in weights if "LayerNorm." in name]:
            old_name = name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")
            weights[old_name] = weights.pop(name)
        save_file(weights, file, {"format": "pt"})
    remarks = import_folder(tmp_path / "source", tmp_path / "in")
    hub = hub_of(tmp_path / "in" / UNTRAINED)
    texts = [*SENTENCES, "the dog sees houses " * N]  # the last is as long as the model reads
    theirs, ours = rows_of(tmp_path / "source", texts), our_rows(tmp_path / "in", texts)
    real = ours.ne(1)
    assert theirs.shape == ours.shape == (4, N)
    for batch in (slice(None), slice(3, 4)):  # with padding and without
        states = model(theirs[batch], attention_mask=real[batch].long(), output_hidden_states=True).hidden_states
        inner = [state.transpose(0, 1) for state in hub.model(ours[batch], return_all_hiddens=True)[1]["inner_states"]]
        assert len(inner) == len(states) == 3
        for state, expected in zip(inner, states, strict=True):
            torch.testing.assert_close(state[real[batch]], expected[real[batch]], rtol=1e-5, atol=1e-5)
    if "MaskedLM" in kind:
        special = {theirs[0, 0].item(): 0, AutoTokenizer.from_pretrained(tmp_path / "source").mask_token_id: -1}
        expected, logits = model(theirs, attention_mask=real.long()).logits, hub.model(ours)[0]
        columns, their_columns = list(special.values()), list(special)
        torch.testing.assert_close(logits[..., columns][real], expected[..., their_columns][real], rtol=1e-5, atol=1e-5)
    assert (DRAWN in remarks) == ("MaskedLM" not in kind)
    if "Classification" in kind:
        expected = model(theirs, attention_mask=real.long()).logits
        torch.testing.assert_close(hub.model(ours, classification_head_name=HEAD)[0], expected, rtol=1e-5, atol=1e-5)
    assert ("left out: bert.pooler.dense" in remarks) == (kind == "BertModel")
    assert (PAIRS_REMARK in remarks) == (kind == "BertForSequenceClassification"), "it has two token types"


@pytest.mark.parametrize("make", [word_pieces, unigrams, partial(bytes_in_pairs, True), partial(bytes_in_pairs, False)])
def test_ids_equal_those_of_transformers_for_difficult_texts(tmp_path, make):
    write_encoder(tmp_path / "source", tokenizer=make())
    import_folder(tmp_path / "source", tmp_path / "in")
    assert_same_pieces(tmp_path / "source", tmp_path / "in", difficult(200))
    hub = hub_of(tmp_path / "in" / UNTRAINED)
    assert hub.decode(hub.encode("the dog sees")).strip() == "the dog sees"
    begins = [hub.bpe.is_beginning_of_word(str(number)) for number in hub.encode("the dogs").tolist()[1:-1]]
    assert begins[0] and sum(begins) == 2


def assert_same_pieces(source: Path, imported: Path, texts: list[str]) -> None:
    """Compare the names of pieces: the two tokenizers have different ids."""
    theirs, ours = AutoTokenizer.from_pretrained(source), load_tokenizer(imported)
    names = Tokenizer.from_file(str(imported / TOKENIZER_FILE))
    assert names.get_vocab_size() == len(theirs) == len(ours.dictionary) + 1, "but for <mask>"
    for text, ids in zip(texts, ours.encode(texts), strict=True):
        pieces = theirs.convert_ids_to_tokens(theirs(text, add_special_tokens=False)["input_ids"])
        assert pieces == [names.id_to_token(number) for number in ids.tolist()], repr(text)


def test_names_of_special_tokens_in_a_text_are_text(tmp_path):
    for kind, options, text in (("BertModel", BERT, "a [CLS][PAD] [MASK]"), ("XLMRobertaModel", AFTER_PADDING, "<s>a")):
        write_encoder(tmp_path / kind, kind, options)
        import_folder(tmp_path / kind, tmp_path / f"{kind}-in")
        (ids,) = load_tokenizer(tmp_path / f"{kind}-in").encode([text])
        tokens = len(load_tokenizer(tmp_path / f"{kind}-in").dictionary)
        assert (3 if kind == "BertModel" else 2) < ids.min() <= ids.max() < tokens
    hub = LinformerRobertaModel.from_pretrained(str(tmp_path / "BertModel-in"))
    assert hub.decode(hub.encode("the dog sees 漢 houses")) == "the dog sees [UNK] houses"
    filled = {piece: text for text, _, piece in hub.fill_mask("the <mask> sees", topk=len(hub.task.source_dictionary))}
    assert filled[" dog"] == "the dog sees" and filled["s"] == "thes sees", "##s continues a word"
    (tmp_path / "BertModel-in" / "dict.txt").write_text("other 1\n")
    with pytest.raises(UserError, match="in its folder belongs to another model"):
        LinformerRobertaModel.from_pretrained(str(tmp_path / "BertModel-in"))


@pytest.mark.parametrize("make", [word_pieces, unigrams, lower_unigrams])
def test_line_breaks_of_labelled_texts_are_spaces(tmp_path, make):
    """Preparation replaces them, too. Import removes the normalizer that export adds."""
    write_encoder(tmp_path / "source", tokenizer=make())
    import_folder(tmp_path / "source", tmp_path / "in")
    source = load_tokenizer(tmp_path / "in")
    lines = [f"the dog{space}the house{space}{space}the" for space in "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"]
    (tmp_path / "out").mkdir()
    write_tokenizer(source, tmp_path / "out", max_length=N, one_line=True)
    exported = AutoTokenizer.from_pretrained(tmp_path / "out")
    columns = encode_columns([Example(line, None) for line in lines], source, pairs=False, prefix="row")
    assert exported(lines, add_special_tokens=False)["input_ids"] == [ids.tolist() for ids in columns[0]]
    (tmp_path / "back").mkdir()
    write_json_tokenizer(exported, tmp_path / "out", tmp_path / "back")
    imported, expected = (json.loads((tmp_path / name / TOKENIZER_FILE).read_text()) for name in ("back", "in"))
    assert imported == expected


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"model_type": "electra"}, "model_type"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"hidden_act": "silu"}, "hidden_act"),
        ({"vocab_size": 2 * len(word_pieces()) + 1}, "vocab_size"),  # more than twice the tokenizer's
        ({"num_hidden_layers": 3}, r"layers\.2"),
    ],
)
def test_other_models_are_rejected_before_anything_is_written(tmp_path, changes, name):
    write_encoder(tmp_path / "source")
    file = tmp_path / "source" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(UserError, match=name):
        import_folder(tmp_path / "source", tmp_path / "in")
    assert not (tmp_path / "in").exists()


def test_incomplete_tokenizers_are_rejected(tmp_path):
    write_encoder(tmp_path / "source")
    tokenizer = word_pieces()
    tokenizer.mask_token = None
    tokenizer.save_pretrained(tmp_path / "source")
    with pytest.raises(UserError, match="mask_token=None"):
        import_folder(tmp_path / "source", tmp_path / "again")
    (tmp_path / "source" / TOKENIZER_FILE).unlink()  # transformers would make one of five special tokens
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        import_folder(tmp_path / "source", tmp_path / "again")


def test_unsupported_modules_and_files_of_other_names(tmp_path):
    source = tmp_path / "source"
    write_encoder(source)
    write_modules(source, "Dense")
    remarks = import_folder(source, tmp_path / "in")
    assert remarks[-1].endswith("sentence-transformers, Transformer, Pooling, Normalize, Dense")
    write_modules(source)
    settings = '{"transformer_task": "sequence-classification", "max_seq_length": 16}'  # of a CrossEncoder
    (source / "sentence_bert_config.json").write_text(settings)
    remarks = import_folder(source, tmp_path / "cross")
    assert remarks[-1].endswith("sentence-transformers, Transformer for sequence-classification, Pooling, Normalize")
    (source / "modules.json").write_text("[3]")
    with pytest.raises(UserError, match=r"modules\.json"):
        import_folder(source, tmp_path / "other")
    state = torch.load(tmp_path / "in" / UNTRAINED, weights_only=True)
    state["task_state"]["sentence_modules"] = {"../modules.json": "{}"}
    torch.save(state, tmp_path / "in" / UNTRAINED)
    with pytest.raises(UserError, match=r"\.\./modules\.json"):
        export(tmp_path / "in" / UNTRAINED, tmp_path / "out")
    assert not (tmp_path / "modules.json").exists() and not (tmp_path / "out").exists()


def test_the_older_layout_of_sentence_transformers(tmp_path):
    """Version 1.2 writes the encoder into a subfolder, and a config.json without a model type."""
    source, inner = tmp_path / "source", tmp_path / "source" / "0_RoBERTa"
    write_encoder(inner)
    write_modules(source)
    (source / "sentence_bert_config.json").rename(inner / "sentence_roberta_config.json")
    (source / "config.json").write_text('{"__version__": "1.2.1"}')
    newer = json.loads((source / "modules.json").read_text())
    older = [{**newer[0], "path": inner.name, "type": "sentence_transformers.models.RoBERTa"}, *newer[1:]]
    (source / "modules.json").write_text(json.dumps(older))
    convert(source, tmp_path / "in", [], long=2 * N)
    export(tmp_path / "in" / UNTRAINED, tmp_path / "out")
    assert json.loads((tmp_path / "out/modules.json").read_text()) == newer
    settings = {"max_seq_length": 2 * N, "do_lower_case": False}
    assert json.loads((tmp_path / "out/sentence_bert_config.json").read_text()) == settings


def test_the_maximum_length_in_the_tokenizers_file(tmp_path):
    """sentence-transformers 6 writes it there."""
    write_encoder(tmp_path / "source")
    write_modules(tmp_path / "source")
    (tmp_path / "source" / "sentence_bert_config.json").write_text('{"transformer_task": "feature-extraction"}')
    file = tmp_path / "source" / "tokenizer_config.json"
    for length, expected in ((int(1e30), {}), (7, {"max_seq_length": 7})):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": length}))
        files, _ = read_sentence_modules(tmp_path / "source")
        settings = json.loads(files["sentence_bert_config.json"])
        assert settings == {"transformer_task": "feature-extraction", **expected}


@torch.no_grad()
@pytest.mark.parametrize(("kind", "long"), [("BertForMaskedLM", True), ("CamembertForMaskedLM", False)])
def test_import_export_and_import_again(tmp_path, kind, long):
    """With a conversion to longer texts, or without: the export is then a RoBERTa with BERT's epsilon."""
    options = {"hidden_act": "gelu", **(BERT if kind == "BertForMaskedLM" else AFTER_PADDING)}
    model = write_encoder(tmp_path / "source", kind, options)
    write_modules(tmp_path / "source")
    if long:
        changes = ["attention=longformer", "longformer_window=64", "max_positions=32"]
        convert(tmp_path / "source", tmp_path / "in", [f"model.{change}" for change in changes])
    else:
        import_folder(tmp_path / "source", tmp_path / "in")
    assert pretraining_command(Path("data"), read_named_checkpoint(tmp_path / "in")) is None, "it needs a teacher"
    export(tmp_path / "in" / UNTRAINED, tmp_path / "FOLDER")
    exported = AutoModel.from_pretrained(tmp_path / "FOLDER", trust_remote_code=True).eval()
    assert "SentenceTransformer(" in (tmp_path / "FOLDER" / "README.md").read_text()
    assert type(load(tmp_path / "FOLDER")).__name__.endswith("Model"), "ONNX has the output of the encoder"
    states = []
    for folder, encoder in ((tmp_path / "source", model.base_model), (tmp_path / "FOLDER", exported)):
        rows = rows_of(folder, SENTENCES)
        real = rows.ne(AutoTokenizer.from_pretrained(folder).pad_token_id)
        states.append(encoder(rows, attention_mask=real.long()).last_hidden_state[real])
    torch.testing.assert_close(*states, rtol=1e-5, atol=1e-5)
    for name in ("modules.json", "1_Pooling/config.json"):
        assert (tmp_path / "FOLDER" / name).read_text() == (tmp_path / "source" / name).read_text()
    settings = json.loads((tmp_path / "FOLDER" / "sentence_bert_config.json").read_text())
    assert settings == {"max_seq_length": 32 if long else 16, "do_lower_case": False}
    AutoTokenizer.from_pretrained(tmp_path / "FOLDER").save_pretrained(tmp_path / "saved")
    exported.save_pretrained(tmp_path / "saved")  # without the folder fairseq
    for folder in ("FOLDER", "saved"):
        import_folder(tmp_path / folder, tmp_path / f"{folder}-back")
        assert_same_weights(tmp_path / "in" / UNTRAINED, tmp_path / f"{folder}-back" / UNTRAINED, ignored="lm_head")
        assert_same_pieces(tmp_path / "source", tmp_path / f"{folder}-back", difficult(50))


def test_the_example_of_the_card_has_the_mask_of_the_tokenizer(tmp_path):
    write_encoder(tmp_path / "source", "BertForMaskedLM", {**BERT, "hidden_act": "gelu"})
    import_folder(tmp_path / "source", tmp_path / "in")
    export(tmp_path / "in", tmp_path / "FOLDER")
    assert 'model("The answer is [MASK].")' in (tmp_path / "FOLDER/README.md").read_text()


@torch.no_grad()
@pytest.mark.exhaustive
@pytest.mark.real_data
@pytest.mark.skipif(not (MINILM / "model.safetensors").is_file(), reason=f"no published model in {MINILM}")
def test_sts_b_of_all_minilm(tmp_path, real_data):
    """docs/export.md has the figure. Embeddings are means over tokens, [CLS] and [SEP] included."""
    assert "left out: bert.pooler.dense" in import_folder(MINILM, tmp_path / "in")
    lines = (real_data / "glue/STS-B/dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    firsts, seconds, scores = zip(*(line.split("\t")[7:10] for line in lines), strict=True)
    assert_same_pieces(MINILM, tmp_path / "in", [*firsts, *seconds, *difficult(2000)])
    model, tokenizer = AutoModel.from_pretrained(MINILM).eval(), AutoTokenizer.from_pretrained(MINILM)
    hub = hub_of(tmp_path / "in" / UNTRAINED)

    def embed(text: str) -> torch.Tensor:
        features = hub.extract_features(hub.encode(text))
        expected = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
        torch.testing.assert_close(features, expected, rtol=0, atol=2e-5)
        return features.mean(1)

    embed("unbelievable houses " * 240)
    cosines = [torch.cosine_similarity(*map(embed, pair)).item() for pair in zip(firsts, seconds, strict=True)]
    correlation = 100 * spearmanr(cosines, [float(score) for score in scores])[0]
    assert correlation == pytest.approx(86.7163, abs=5e-5)
