"""BERT and its relatives as checkpoints of fairseq, against transformers: hidden states, ids, heads, and out again."""

import json
import random
import re
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
from fairseq_linformer.cli.command import main
from fairseq_linformer.convert import convert
from fairseq_linformer.data.prepare.examples import Example, encode_columns
from fairseq_linformer.data.tokenizer import TOKENIZER_FILE, load_tokenizer
from fairseq_linformer.errors import UserError
from fairseq_linformer.hf.exporting import export
from fairseq_linformer.hf.importing import import_folder, write_json_tokenizer
from fairseq_linformer.hf.tokenizer import SAMPLE, write_tokenizer
from fairseq_linformer.training.launch import pretraining_command
from tests.helpers.checkpoints import assert_same_weights
from tests.helpers.commands import last_line, run
from tests.helpers.exports import HEAD, hub_of, write_pretrained

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
    """WordPiece with special tokens where BERT has them, in the midst, and one token of its own."""
    letters = [chr(number) for number in range(33, 127) if not chr(number).isupper()]
    names = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{x}" for x in letters), *WORDS]
    pieces = models.WordPiece({name: number for number, name in enumerate(names)}, unk_token="[UNK]")
    tokenizer = Tokenizer(pieces)
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([AddedToken("[E1]", special=True)])
    return named(tokenizer, *names[3:4], names[0], names[4], names[2], names[5])


def unigrams() -> PreTrainedTokenizerFast:
    """Unigram as in CamemBERT: <s> and </s> after others, and <mask> behind all pieces, which does not list it."""
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
    given = {"max_position_embeddings": N, "vocab_size": len(tokenizer) + 3, **options}
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**given)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder)
    return model


def write_modules(folder: Path, *others: str) -> None:
    """What sentence-transformers writes beside an encoder."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize", **{name: name for name in others}}
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 16, "do_lower_case": false}')
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": BERT["hidden_size"], "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def rows_of(folder: Path, texts: list[str]) -> torch.Tensor:
    """A batch of transformers, padded, (B, n). The tokenizers of this test frame no rows."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    first, last, pad = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    rows = [torch.tensor([first, *row[: N - 2], last]) for row in ids]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)


def our_rows(folder: Path, texts: list[str]) -> torch.Tensor:
    rows = [torch.tensor([0, *ids[: N - 2].tolist(), 2]) for ids in load_tokenizer(folder).encode(texts)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=1)


def test_the_first_berts_name_gains_and_biases_as_tensorflow_does(tmp_path):
    write_encoder(tmp_path / "source", "BertForMaskedLM", BERT)
    import_folder(tmp_path / "source", tmp_path / "in")
    file = tmp_path / "source/model.safetensors"
    weights = load_file(file)
    old = {
        name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): weights[name] for name in weights
    }
    save_file(old, file, {"format": "pt"})
    remarks = import_folder(tmp_path / "source", tmp_path / "old")
    first, second = (hub_of(tmp_path / name / UNTRAINED).model.state_dict() for name in ("in", "old"))
    assert old.keys() != weights.keys() and not any("Norm" in remark for remark in remarks)
    assert all(torch.equal(own, second[name]) for name, own in first.items())


@torch.no_grad()
@pytest.mark.parametrize(("kind", "options"), MODELS)
def test_hidden_states_and_logits_are_those_of_transformers(tmp_path, kind, options):
    model = write_encoder(tmp_path / "source", kind, options)
    remarks = import_folder(tmp_path / "source", tmp_path / "in")
    hub = hub_of(tmp_path / "in" / UNTRAINED)
    texts = [*SENTENCES, "the dog sees houses " * N]  # the last is as long as the model reads
    theirs, ours = rows_of(tmp_path / "source", texts), our_rows(tmp_path / "in", texts)
    real = ours.ne(1)
    assert theirs.shape == ours.shape == (4, N)
    # The second time without padding.
    for rows in (slice(None), slice(3, 4)):
        states = model(theirs[rows], attention_mask=real[rows].long(), output_hidden_states=True)
        found = [state.transpose(0, 1) for state in hub.model(ours[rows], return_all_hiddens=True)[1]["inner_states"]]
        assert len(found) == len(states.hidden_states) == 3
        for own, other in zip(found, states.hidden_states, strict=True):
            torch.testing.assert_close(own[real[rows]], other[real[rows]], rtol=1e-5, atol=1e-5)
    drawn = "it has no LM head: a new one was drawn"
    if "MaskedLM" in kind:
        special = {theirs[0, 0].item(): 0, AutoTokenizer.from_pretrained(tmp_path / "source").mask_token_id: -1}
        expected, logits = model(theirs, attention_mask=real.long()).logits, hub.model(ours)[0]
        columns, places = list(special), list(special.values())
        torch.testing.assert_close(logits[..., places][real], expected[..., columns][real], rtol=1e-5, atol=1e-5)
        assert drawn not in remarks
    else:
        assert drawn in remarks
    if "Classification" in kind:
        expected = model(theirs, attention_mask=real.long()).logits
        torch.testing.assert_close(hub.model(ours, classification_head_name=HEAD)[0], expected, rtol=1e-5, atol=1e-5)
    assert ("left out: bert.pooler.dense" in remarks) == (kind == "BertModel")


def nasty(count: int) -> list[str]:
    """Texts of characters of all kinds, with words among them."""
    draw = random.Random(0)
    ranges = [(1, 0x80), (0x80, 0x600), (0x900, 0xE00), (0x2000, 0x3100), (0x4E00, 0xA000), (0xF900, 0x10000)]
    ranges += [(0x1F300, 0x1FB00), (0x20000, 0x20100)]
    parts = ["the", "dogs", "unbelievable", "##s", " ", "  ", "\t", "...", "don't", "[E1]", "[unused0]", "<", "▁"]

    def part() -> str:
        return draw.choice(parts) if draw.random() < 0.4 else chr(draw.randrange(*draw.choice(ranges)))

    return [*SAMPLE, "x" * 200, *("".join(part() for _ in range(draw.randrange(40))) for _ in range(count))]


@pytest.mark.parametrize("make", [word_pieces, unigrams, partial(bytes_in_pairs, True), partial(bytes_in_pairs, False)])
def test_ids_are_those_of_transformers_on_nasty_texts(tmp_path, make):
    write_encoder(tmp_path / "source", tokenizer=make())
    import_folder(tmp_path / "source", tmp_path / "in")
    assert_same_pieces(tmp_path / "source", tmp_path / "in", nasty(400))
    hub = hub_of(tmp_path / "in" / UNTRAINED)
    assert hub.decode(hub.encode("the dog sees")).strip() == "the dog sees"
    begins = [hub.bpe.is_beginning_of_word(str(number)) for number in hub.encode("the dogs").tolist()[1:-1]]
    assert begins[0] and sum(begins) == 2


def assert_same_pieces(source: Path, imported: Path, texts: list[str]) -> None:
    """A piece has one number on each side, so the names tell."""
    theirs, ours = AutoTokenizer.from_pretrained(source), load_tokenizer(imported)
    names = Tokenizer.from_file(str(imported / TOKENIZER_FILE))
    assert names.get_vocab_size() == len(theirs) == len(ours.dictionary) + 1, "but for <mask>"
    for text, ids in zip(texts, ours.encode(texts), strict=True):
        pieces = theirs.convert_ids_to_tokens(theirs(text, add_special_tokens=False)["input_ids"])
        assert pieces == [names.id_to_token(number) for number in ids.tolist()], repr(text)


def test_names_of_special_tokens_in_a_text_are_text(tmp_path):
    """A row with <s> or <pad> in its midst would mean something else, or be refused."""
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


@pytest.mark.parametrize("make", [word_pieces, unigrams, lower_unigrams, partial(bytes_in_pairs, True)])
def test_line_breaks_of_labelled_texts_are_spaces(tmp_path, make):
    """As in preparation. On the way back the tokenizer is what it came from."""
    kind, options = ("BertModel", BERT) if make is word_pieces else ("RobertaModel", AFTER_PADDING)
    write_encoder(tmp_path / "source", kind, options, make())
    import_folder(tmp_path / "source", tmp_path / "in")
    source = load_tokenizer(tmp_path / "in")
    lines = [f"the dog{space}the house{space}{space}the" for space in "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"]
    (tmp_path / "out").mkdir()
    write_tokenizer(source, tmp_path / "out", max_length=N, one_line=True)
    exported = AutoTokenizer.from_pretrained(tmp_path / "out")
    columns = encode_columns([Example(line, None) for line in lines], source, pairs=False, where="row")
    assert exported(lines, add_special_tokens=False)["input_ids"] == [ids.tolist() for ids in columns[0]]
    (tmp_path / "back").mkdir()
    write_json_tokenizer(exported, tmp_path / "out", tmp_path / "back")
    found, expected = (json.loads((tmp_path / name / TOKENIZER_FILE).read_text()) for name in ("back", "in"))
    assert found == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "modernbert"},
        {"position_embedding_type": "relative_key"},
        {"is_decoder": True},
        {"pruned_heads": {"1": [0]}},
        {"hidden_act": "silu"},
        {"vocab_size": 100},
        {"intermediate_size": 24},
        {"num_hidden_layers": 3},
        {"num_attention_heads": 5},
    ],
)
def test_other_models_are_rejected_before_anything_is_written(tmp_path, changes):
    write_encoder(tmp_path / "source")
    file = tmp_path / "source" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    (name,) = changes
    found = {"intermediate_size": "fc1.weight", "num_hidden_layers": r"layers\.2", "num_attention_heads": "heads=5"}
    with pytest.raises(UserError, match=found.get(name, name)):
        import_folder(tmp_path / "source", tmp_path / "in")
    assert not (tmp_path / "in").exists()


def test_tokenizers_that_do_not_belong_to_the_model_are_rejected(tmp_path, vocabulary):
    write_encoder(tmp_path / "source")
    import_folder(tmp_path / "source", tmp_path / "in")
    (tmp_path / "in" / "dict.txt").write_bytes((vocabulary / "dict.txt").read_bytes())
    checkpoint = write_pretrained(tmp_path / "run", vocabulary)
    for load in (load_tokenizer, partial(LinformerRobertaModel.load, checkpoint)):
        with pytest.raises(UserError, match=r"dict\.txt"):
            load(tmp_path / "in")
    tokenizer = word_pieces()
    tokenizer.mask_token = None
    tokenizer.save_pretrained(tmp_path / "source")
    with pytest.raises(UserError, match="mask_token=None"):
        import_folder(tmp_path / "source", tmp_path / "again")
    for name in (TOKENIZER_FILE, "tokenizer_config.json"):  # transformers makes one of five special tokens
        (tmp_path / "source" / name).unlink()
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        import_folder(tmp_path / "source", tmp_path / "again")


def test_a_tokenizer_of_less_than_half_the_rows_is_refused(tmp_path):
    for added, fits in ((len(word_pieces()), True), (len(word_pieces()) + 1, False)):
        write_encoder(tmp_path / f"{fits}", options={**BERT, "vocab_size": len(word_pieces()) + added})
    import_folder(tmp_path / "True", tmp_path / "in")
    with pytest.raises(UserError, match="vocab_size"):
        import_folder(tmp_path / "False", tmp_path / "other")


def test_modules_that_cannot_come_along_and_files_of_other_names(tmp_path):
    write_encoder(tmp_path / "source")
    write_modules(tmp_path / "source", "Dense")
    (said,) = [remark for remark in import_folder(tmp_path / "source", tmp_path / "in") if "modules" in remark]
    assert said.endswith("sentence-transformers, Transformer, Pooling, Normalize, Dense")
    write_modules(tmp_path / "source")
    settings = '{"transformer_task": "sequence-classification", "max_seq_length": 16}'  # of a CrossEncoder
    (tmp_path / "source" / "sentence_bert_config.json").write_text(settings)
    said = import_folder(tmp_path / "source", tmp_path / "cross")
    assert said[-1].endswith("sentence-transformers, Transformer for sequence-classification, Pooling, Normalize")
    export(tmp_path / "cross", tmp_path / "cross-out")
    assert not (tmp_path / "cross-out" / "modules.json").exists()
    (tmp_path / "source" / "modules.json").write_text("[3]")
    with pytest.raises(UserError, match=r"modules\.json: not a list of modules"):
        import_folder(tmp_path / "source", tmp_path / "other")
    state = torch.load(tmp_path / "in" / UNTRAINED, weights_only=True)
    for name in ("../modules.json", "config.json", "/modules.json"):
        state["task_state"]["sentence_modules"] = {name: "{}"}
        torch.save(state, tmp_path / "in" / UNTRAINED)
        with pytest.raises(UserError, match="is no file of sentence-transformers"):
            export(tmp_path / "in" / UNTRAINED, tmp_path / "out")
    assert not (tmp_path / "modules.json").exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("kind", "length_file", "normalized"),
    [("Transformer", "sentence_bert_config.json", True), ("RoBERTa", "sentence_roberta_config.json", False)],
)
def test_the_older_layout_of_sentence_transformers(tmp_path, kind, length_file, normalized):
    """As its version 1.2 writes it: the encoder in a folder of its own, and a config.json that is of no model.

    What comes out has the newer layout.
    """
    source, inner = tmp_path / "source", tmp_path / "source" / f"0_{kind}"
    write_encoder(inner)
    write_modules(source)
    (source / "sentence_bert_config.json").rename(inner / length_file)
    (source / "config.json").write_text('{"__version__": "1.2.1"}')
    newer = json.loads((source / "modules.json").read_text())[: 3 if normalized else 2]
    older = [{**newer[0], "path": inner.name, "type": f"sentence_transformers.models.{kind}"}, *newer[1:]]
    (source / "modules.json").write_text(json.dumps(older))
    settings = {"max_seq_length": 16, "do_lower_case": False}
    for length in (None, 2 * N):
        made, out = tmp_path / f"in-{length}", tmp_path / f"out-{length}"
        convert(source, made, ["model.attention=linformer", "model.projection=mean-pool"], long=length)
        export(made / UNTRAINED, out)
        assert json.loads((out / "modules.json").read_text()) == newer
        read = settings | ({"max_seq_length": length} if length else {})
        assert json.loads((out / "sentence_bert_config.json").read_text()) == read
        assert (out / "1_Pooling" / "config.json").is_file()


def test_the_length_that_the_tokenizers_file_says(tmp_path):
    """As sentence-transformers 6 writes it; an export's tokenizer reads all that the encoder does."""
    write_encoder(tmp_path / "source")
    write_modules(tmp_path / "source")
    (tmp_path / "source" / "sentence_bert_config.json").write_text('{"transformer_task": "feature-extraction"}')
    file = tmp_path / "source" / "tokenizer_config.json"
    for cut, read in ((int(1e30), {}), (7, {"max_seq_length": 7})):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": cut}))
        import_folder(tmp_path / "source", tmp_path / f"in-{cut}")
        export(tmp_path / f"in-{cut}" / UNTRAINED, tmp_path / f"out-{cut}")
        settings = json.loads((tmp_path / f"out-{cut}" / "sentence_bert_config.json").read_text())
        assert settings == {"transformer_task": "feature-extraction", **read}


def test_a_classifier_of_pairs_says_that_types_stay_behind(tmp_path):
    for name, types in (("pairs", 2), ("texts", 1)):
        write_encoder(tmp_path / name, "BertForSequenceClassification", {**BERT, "type_vocab_size": types})
        said = import_folder(tmp_path / name, tmp_path / f"{name}-in")
        assert any("token type 1" in remark for remark in said) == (types == 2)


def test_what_to_type_after_preparing_text_for_an_encoder(tmp_path, monkeypatch):
    """Where one line is enough: a sentence encoder learns from another model; a vocabulary makes a new one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for name in ("plain", "sentences"):
        write_encoder(tmp_path / name)
    write_modules(tmp_path / "sentences")
    for name in ("plain", "sentences"):
        import_folder(tmp_path / name, tmp_path / f"{name}-in")
    words = 'fairseq-hydra-train --config-dir "$(linformer configs)"/pretrain --config-name'
    start = "checkpoint.finetune_from_model=plain-in/checkpoint.pt"
    for tokenizer, typed in (
        ("plain-in", f"{words} continue recipe=tiny task.data=data {start}"),
        ("sentences-in", None),
        ("sentences-in/dict.txt", f"{words} tiny_512 task.data=data"),
    ):
        assert pretraining_command(Path("data"), read_named_checkpoint(Path(tokenizer))) == typed


@pytest.fixture
def long_encoder(tmp_path):
    """A sentence encoder of one layer made long, exported into `out`: texts, and our features of each."""
    write_encoder(tmp_path / "source", options={**BERT, "num_hidden_layers": 1})
    write_modules(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "in", [], long=2 * N)
    export(tmp_path / "in" / UNTRAINED, tmp_path / "out")
    assert "SentenceTransformer(" in (tmp_path / "out" / "README.md").read_text()
    hub, texts = hub_of(tmp_path / "in" / UNTRAINED), [*SENTENCES, "the dog sees houses " * 6]
    with torch.no_grad():
        return texts, [hub.extract_features(hub.encode(text))[0] for text in texts]


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)  # mostly PyTorch's exporter, which takes its time on a busy machine
def test_onnx_of_a_sentence_encoder_gives_its_features(tmp_path, long_encoder):
    """Not logits of the head that it never had; of any length and number of texts."""
    onnx = pytest.importorskip("fairseq_linformer.hf.onnx", reason="onnx is not installed")
    texts, ours = long_encoder
    main(["export", str(tmp_path / "out"), "--format", "onnx", "--out", str(tmp_path / "out/onnx/model.onnx")])
    session = onnx.open_session(tmp_path / "out/onnx/model.onnx")
    assert [output.name for output in session.get_outputs()] == ["last_hidden_state"]
    rows = AutoTokenizer.from_pretrained(tmp_path / "out")(texts, padding=True, return_tensors="pt")
    features = onnx.run_session(session, (rows["input_ids"], rows["attention_mask"]))
    for found, expected in zip(features, ours, strict=True):
        torch.testing.assert_close(found[: len(expected)], expected, rtol=1e-5, atol=1e-5)
    model = AutoModel.from_pretrained(tmp_path / "out", trust_remote_code=True).eval()
    for count, length in ((7, 3), (5, N), (2, N + 1), (4, 2 * N - 3)):  # none that the export looks at
        batch = onnx.random_batch(model.config, count, length, padded=True)
        real, found, expected = batch[1].bool(), onnx.run_session(session, batch), onnx.run_model(model, batch)
        torch.testing.assert_close(found[real], expected[real], rtol=1e-5, atol=1e-5)


def test_sentence_transformers_gives_our_embeddings(tmp_path, long_encoder):
    """Where it is installed."""
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    texts, ours = long_encoder
    model = library.SentenceTransformer(str(tmp_path / "out"), trust_remote_code=True, device="cpu")
    expected = torch.nn.functional.normalize(torch.stack([state.mean(0) for state in ours]), dim=1)
    torch.testing.assert_close(model.encode(texts, convert_to_tensor=True), expected, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("kind", ["BertForMaskedLM", "CamembertForMaskedLM"])
def test_out_again(tmp_path, kind, long):
    """Through a conversion to longer texts, whose own model of transformers has the epsilon too, or as it came."""
    options = {"hidden_act": "gelu", **(BERT if kind == "BertForMaskedLM" else AFTER_PADDING)}
    model = write_encoder(tmp_path / "source", kind, options)
    write_modules(tmp_path / "source")
    if long:
        changes = ["attention=longformer", "longformer_window=64", "max_positions=32"]
        convert(tmp_path / "source", tmp_path / "in", [f"model.{change}" for change in changes])
    else:
        import_folder(tmp_path / "source", tmp_path / "in")
    export(tmp_path / "in" / UNTRAINED, tmp_path / "out")
    exported = AutoModel.from_pretrained(tmp_path / "out", trust_remote_code=True).eval()
    states = []
    for folder, encoder in ((tmp_path / "source", model.base_model), (tmp_path / "out", exported)):
        rows = rows_of(folder, SENTENCES)
        real = rows.ne(AutoTokenizer.from_pretrained(folder).pad_token_id)
        states.append(encoder(rows, attention_mask=real.long()).last_hidden_state[real])
    torch.testing.assert_close(*states, rtol=1e-5, atol=1e-5)
    for name in ("modules.json", "1_Pooling/config.json"):
        assert (tmp_path / "out" / name).read_text() == (tmp_path / "source" / name).read_text()
    settings = json.loads((tmp_path / "out" / "sentence_bert_config.json").read_text())
    assert settings == {"max_seq_length": 32 if long else 16, "do_lower_case": False}
    for saved in (False, True):  # as exported, and as transformers saves it again, without the folder fairseq
        source = tmp_path / "out"
        if saved:
            source = tmp_path / "saved"
            AutoTokenizer.from_pretrained(tmp_path / "out").save_pretrained(source)
            AutoModel.from_pretrained(tmp_path / "out", trust_remote_code=True).save_pretrained(source)
        import_folder(source, tmp_path / f"back-{saved}")
        assert_same_weights(tmp_path / "in" / UNTRAINED, tmp_path / f"back-{saved}" / UNTRAINED, but="lm_head")
        assert_same_pieces(tmp_path / "source", tmp_path / f"back-{saved}", nasty(50))


def test_the_example_of_the_card_has_the_mask_of_the_tokenizer(tmp_path, monkeypatch):
    write_encoder(tmp_path / "source", "BertForMaskedLM", {**BERT, "hidden_act": "gelu"})
    import_folder(tmp_path / "source", tmp_path / "in")
    export(tmp_path / "in", tmp_path / "FOLDER")
    (code,) = re.findall(r"```python\n(.*?)```", (tmp_path / "FOLDER/README.md").read_text(), re.DOTALL)
    assert 'model("The answer is [MASK].")' in code
    monkeypatch.chdir(tmp_path)
    exec(code)


@pytest.mark.exhaustive
def test_an_imported_encoder_is_fine_tuned_and_pretrained_by_the_commands(tmp_path):
    write_encoder(tmp_path / "source")
    write_modules(tmp_path / "source")
    said = run("linformer", "import", "source", "--out", "in", cwd=tmp_path)
    assert "note: it has no LM head: a new one was drawn" in said and "in/checkpoint.pt: written" in said
    texts = (("the dog [CLS]", "good"), ("a house", "bad"))
    rows = [f"{text} {number}\t{label}\n" for number in range(9) for text, label in texts]
    (tmp_path / "rows.tsv").write_text("".join(["text\tlabel\n", *rows]))
    run("linformer", "prepare", "table", "rows.tsv", "--tokenizer", "in", "--out", "tasks/own", cwd=tmp_path)
    words = ("--data", "tasks", "--tasks", "own", "--out", "runs", "--seeds", 1, "--epochs", 1, "common.cpu=true")
    run("linformer", "finetune", "in", *words, cwd=tmp_path)
    (tmp_path / "texts.txt").write_text("the dog\n")
    (run_folder,) = (path.parent for path in (tmp_path / "runs").rglob("checkpoint_best.pt"))
    assert run("linformer", "predict", run_folder, "--input", "texts.txt", cwd=tmp_path)
    run("linformer", "export", run_folder, "--out", "out", cwd=tmp_path)
    classify = transformers.pipeline("text-classification", str(tmp_path / "out"))
    assert classify("the dog")[0]["label"] in ("good", "bad")
    (tmp_path / "train.txt").write_text("the dog sees unbelievable houses\n" * 30)
    files = ("--train", "train.txt", "--valid", "train.txt", "--out", "data", "--tokenizer", "in", "--workers", 2)
    printed = run("linformer", "prepare", "corpus", *files, cwd=tmp_path)
    assert "recipe=encoder task.data=data criterion.teacher=in " in last_line(printed)
    words = ["--config-dir", Path(__file__).parents[2] / "configs/pretrain", "--config-name", "continue", "recipe=tiny"]
    words += ["task.data=data", "checkpoint.finetune_from_model=in/checkpoint.pt", "checkpoint.save_dir=on"]
    words += ["common.cpu=true", "optimization.max_update=2", "task.mask_whole_words=true", "dataset.num_workers=0"]
    run("fairseq-hydra-train", *words, cwd=tmp_path)
    trained = torch.load(tmp_path / "on/checkpoint_last.pt", weights_only=True)
    assert trained["cfg"]["model"]["layer_norm_eps"] == 0.01
    assert "1_Pooling/config.json" in trained["task_state"]["sentence_modules"]


needs_minilm = pytest.mark.skipif(
    not (MINILM / "model.safetensors").is_file(), reason=f"no published model in {MINILM}"
)


@torch.no_grad()
@pytest.mark.slow
@needs_minilm
def test_all_minilm(tmp_path):
    assert "left out: bert.pooler.dense" in import_folder(MINILM, tmp_path / "in")
    assert_same_pieces(MINILM, tmp_path / "in", [*SENTENCES, *nasty(300)])
    hub, model = hub_of(tmp_path / "in" / UNTRAINED), AutoModel.from_pretrained(MINILM).eval()
    tokenizer = AutoTokenizer.from_pretrained(MINILM)
    for text in (*SENTENCES, "unbelievable houses " * 240):
        expected = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
        torch.testing.assert_close(hub.extract_features(hub.encode(text)), expected, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.exhaustive
@pytest.mark.real_data
@needs_minilm
def test_sts_b_of_all_minilm(tmp_path, real_data):
    """What docs/export.md says of it. Embeddings are means over tokens, [CLS] and [SEP] included."""
    import_folder(MINILM, tmp_path / "in")
    lines = (real_data / "glue/STS-B/dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    firsts, seconds, scores = zip(*(line.split("\t")[7:10] for line in lines), strict=True)
    assert_same_pieces(MINILM, tmp_path / "in", [*firsts, *seconds, *nasty(2000)])
    model, tokenizer = AutoModel.from_pretrained(MINILM).eval(), AutoTokenizer.from_pretrained(MINILM)
    ours, pieces = hub_of(tmp_path / "in" / UNTRAINED).model, load_tokenizer(tmp_path / "in")

    def theirs_of(text: str) -> torch.Tensor:
        return model(**tokenizer(text, return_tensors="pt")).last_hidden_state.mean(1)

    def ours_of(text: str) -> torch.Tensor:
        return ours(torch.tensor([[0, *pieces.encode([text])[0].tolist(), 2]]), features_only=True)[0].mean(1)

    found = []
    for embed in (theirs_of, ours_of):
        cosines = [torch.cosine_similarity(*map(embed, pair)).item() for pair in zip(firsts, seconds, strict=True)]
        found.append(100 * spearmanr(cosines, [float(score) for score in scores])[0])
    assert found == pytest.approx([86.7163, 86.7163], abs=5e-5)
