"""The model: sizes, lengths, padding, RoBERTa's options, agreement with fairseq's RoBERTa."""

from argparse import Namespace
from functools import partialmethod

import pytest
import torch
import torch._dynamo
from fairseq.models.roberta import RobertaModel
from torch._dynamo.testing import CompileCounter

from fairseq_linformer.attention.linformer import PROJECTIONS, SHARINGS
from fairseq_linformer.errors import UserError
from fairseq_linformer.model.parts import LocalConvolution
from fairseq_linformer.model.roberta import LinformerRobertaModel
from tests.helpers.models import (
    DEVICE,
    MODELS,
    OFFLOADED,
    RECOMPUTED,
    VOCABULARY,
    WINDOW,
    Task,
    gradients_of,
    small,
    tokens,
)

# Each path through the code once: compiling takes seconds.
COMPILED = [{"encoder_normalize_before": True, "local_conv": 3}, {"sharing": "none"}, {"attention": "softmax"}]
COMPILED += [{"projection": name, "sharing": "key-value"} for name in PROJECTIONS if name != "random"]
COMPILED += [{"projection": name, "sharing": "key-value", "adaptive_length": True} for name in ("linear", "conv")]
COMPILED += [{"projection": "split-pool", "value_residual": True, **WINDOW}, {"linformer_class_token": True}]
COMPILED += [{"attention": "softmax", "positions": positions} for positions in ("rotary", "alibi")]
EACH = pytest.mark.parametrize("options", MODELS, ids=str)


@EACH
def test_outputs_do_not_depend_on_padding_and_other_sequences(options):
    model = small(**options).eval()
    batch = tokens(3, 64)
    batch[1, 20:] = model.encoder.dictionary.pad()
    batch[2, 1:] = model.encoder.dictionary.pad()
    logits = model(batch)[0]
    for row, length in ((0, 64), (1, 20), (2, 1)):
        torch.testing.assert_close(logits[row, :length], model(batch[row : row + 1, :length])[0][0], atol=1e-5, rtol=0)


def test_a_sequence_beyond_max_positions_is_rejected():
    with pytest.raises(UserError, match=r"65 .* max_positions=64"):
        small()(tokens(1, 65))


def test_a_convolution_is_the_sum_over_its_taps():
    """Also for texts that are shorter than its width."""
    conv = LocalConvolution(6, 9).double()
    for length in (3, 20):
        x = torch.randn(2, length, 6, dtype=torch.float64, requires_grad=True)
        outs = conv(x), conv.by_taps(x)
        gradients = [torch.autograd.grad((out * out).sum(), [x, *conv.parameters()]) for out in outs]
        torch.testing.assert_close(outs[1], outs[0])
        torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.cuda
@EACH
def test_half_precision_on_sequences_of_mostly_padding(options):
    """In float16, which has the smallest range, and under autocast with bfloat16."""
    model = small(**{**options, "dropout": 0.0, "attention_dropout": 0.0}).to(DEVICE)
    batch = tokens(2, 64).to(DEVICE)
    batch[0, 1:] = model.encoder.dictionary.pad()
    real = batch != model.encoder.dictionary.pad()
    expected = model(batch)[0][real]
    for half in (False, True):
        model = model.half() if half else model
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=not half):
            logits = model(batch)[0][real].float()
            gradients = gradients_of(model, logits.logsumexp(-1).mean())
        assert all(gradient.isfinite().all() for gradient in gradients)
        torch.testing.assert_close(logits[1:], expected[1:], atol=0.05, rtol=0.05)


@pytest.mark.cuda
@pytest.mark.parametrize("options", [*({"sharing": name} for name in SHARINGS), {"attention": "nystrom"}], ids=str)
@pytest.mark.parametrize("length", [5, 64], ids=["embedding first", "projection first"])
def test_autocast_with_attention_dropout(options, length):
    """Gradients are near those of float32 with the same masks; attention mixes bfloat16 and float32."""
    model, gradients = small(**options, dropout=0.0, attention_dropout=0.2).to(DEVICE), []
    for autocast in (True, False):
        torch.manual_seed(1)
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=autocast):
            loss = model(tokens(2, length).to(DEVICE))[0].float().logsumexp(-1).mean()
        gradients.append(torch.cat([part.flatten() for part in gradients_of(model, loss)]))
    assert (gradients[0] - gradients[1]).norm() < 0.02 * gradients[1].norm()


def test_a_layer_with_a_window_is_one_graph():
    torch._dynamo.reset()
    layer = small(**MODELS[-1]).encoder.sentence_encoder.layers[1].eval()
    x = torch.randn(2, 64, 24)
    expected = layer(x)
    layer.compile(backend="eager", fullgraph=True)
    torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=0)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("options", "training"),
    [
        *((options, False) for options in COMPILED),
        *((options, True) for options in (*COMPILED[:3], RECOMPUTED)),
    ],
    ids=str,
)
def test_compiles_without_graph_breaks_for_all_lengths(options, training):
    """Once for the first length, once for all others."""
    encoder = small(**options, dropout=0.0, attention_dropout=0.0).encoder.sentence_encoder.train(training)
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(encoder, backend=counter, fullgraph=True)
    for rows, length in ((2, 64), (2, 50), (3, 23)):
        batch = tokens(rows, length)
        batch[1, length // 2 + 1 :] = encoder.padding_idx
        out, expected = (module(batch)[0] for module in (compiled, encoder))
        real = batch.ne(encoder.padding_idx)
        torch.testing.assert_close(out[real], expected[real], atol=1e-5, rtol=1e-4)
    assert counter.frame_count <= 3, "the third for another number of rows"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.exhaustive)])
def test_compiled_layers_give_the_same_and_keep_their_names(backend, monkeypatch):
    """In training and evaluation, with and without padding, at all lengths, within PyTorch's limit of graphs."""
    options = {"backend": backend, "fullgraph": True}  # without graph breaks
    monkeypatch.setattr(torch.nn.Module, "compile", partialmethod(torch.nn.Module.compile, **options))
    torch._dynamo.reset()
    plain, compiled = (small(dropout=0.0, attention_dropout=0.0, compile_layers=compiles) for compiles in (False, True))
    assert plain.state_dict().keys() == compiled.state_dict().keys()
    with torch._dynamo.config.patch(error_on_recompile=False, fail_on_recompile_limit_hit=True):
        for length, padded, training in ((40, True, True), (23, True, True), (23, False, False)):
            batch = tokens(3, length)
            masked = batch < 30 if training else None
            batch[0, 9:] = 1 if padded else batch[0, 9:]
            logits = [model.train(training)(batch, masked_tokens=masked)[0] for model in (compiled, plain)]
            torch.testing.assert_close(*logits, atol=1e-5, rtol=1e-4)
            pairs = zip((compiled, plain), logits, strict=True)
            gradients = [gradients_of(model, output.logsumexp(-1).mean()) for model, output in pairs]
            torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("batch", [[[0, VOCABULARY, 5]], [[0, -3, 5]], [[1, 1, 1]], [[5, 6, 7], [7, 1, 8]]], ids=str)
def test_batches_that_cannot_be_encoded_are_rejected(batch):
    with pytest.raises(UserError):
        small()(torch.tensor(batch))


@pytest.mark.parametrize(
    ("size", "layers", "d", "sharing"),
    [("tiny", 4, 256, "none"), ("base", 12, 768, "headwise"), ("large", 24, 1024, "layerwise")],
)
def test_parameter_counts_of_the_architectures(size, layers, d, sharing):
    """They follow README's formula; the matrices of E and F are k x n = 128 x 512."""
    options = Namespace(arch=f"linformer_roberta_{size}", sharing=sharing)
    with torch.device("meta"):
        model = LinformerRobertaModel.build_model.__func__(WithoutInitialisation, options, Task(512))
    matrices = {"none": 2 * d // 64 * layers, "headwise": 2 * layers, "layerwise": 1}[sharing]
    embeddings = VOCABULARY * d + (512 + 2) * d + 2 * d  # tokens, positions (two more rows: fairseq's padding), norm
    layer = 4 * (d * d + d) + 8 * d * d + 5 * d + 4 * d
    lm_head = d * d + d + 2 * d + VOCABULARY
    expected = embeddings + layers * layer + lm_head + matrices * 128 * 512
    assert sum(p.numel() for p in model.parameters()) == expected


def test_the_gated_network_is_geglu_without_biases():
    """Shazeer 2020, eq. 6."""
    layer = small(gated_ffn=True, encoder_ffn_embed_dim=32).encoder.sentence_encoder.layers[0]
    assert layer.fc1.bias is None and layer.fc2.bias is None
    x = torch.randn(2, 5, 24)
    u, v = layer.fc1.weight[:32], layer.fc1.weight[32:]
    expected = (torch.nn.functional.gelu(x @ u.T) * (x @ v.T)) @ layer.fc2.weight.T
    torch.testing.assert_close(layer.feed_forward(x), expected)


@pytest.mark.parametrize("normalize_before", [False, True])
def test_a_value_residual_takes_the_first_layers_values(normalize_before):
    """With weights 0 and 1 the values of a later layer are those of the first."""
    model = small(value_residual=True, encoder_normalize_before=normalize_before, encoder_layers=3).eval()
    first, *later = (layer.self_attn for layer in model.encoder.sentence_encoder.layers)
    assert first.value_mix is None and all(attention.value_mix.tolist() == [0.5, 0.5] for attention in later)
    for attention in later:
        attention.value_mix.data = torch.tensor([0.0, 1.0])
    before = model(tokens(2, 9))[0]
    later[1].v_proj.weight.data.normal_()
    torch.testing.assert_close(model(tokens(2, 9))[0], before)
    first.v_proj.weight.data.normal_()
    assert not torch.allclose(model(tokens(2, 9))[0], before)


class WithoutInitialisation(LinformerRobertaModel):
    """The model on the meta device, where fairseq's initialization cannot run."""

    def apply(self, fn):
        return self


def test_softmax_twin_equals_fairseqs_roberta():
    """The same weights under the same names give the same logits."""
    for options in ({}, {"encoder_normalize_before": True}, {"layernorm_embedding": False}):
        ours = small(attention="softmax", **options).eval()
        sizes = {k: getattr(ours.args, k) for k in ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim")}
        theirs = RobertaModel.build_model(
            Namespace(**sizes, encoder_attention_heads=3, max_positions=64, **options), Task()
        ).eval()
        theirs.load_state_dict({**ours.state_dict(), "encoder.sentence_encoder.version": torch.tensor([3.0])})
        batch = tokens(2, 40)
        batch[1, 30:] = ours.encoder.dictionary.pad()
        torch.testing.assert_close(ours(batch)[0][1, :30], theirs(batch)[0][1, :30], atol=1e-5, rtol=0)
        torch.testing.assert_close(ours(batch)[0][0], theirs(batch)[0][0], atol=1e-5, rtol=0)


DROPOUT = {"dropout": 0.2, "attention_dropout": 0.2, "activation_dropout": 0.2}


@pytest.mark.cuda
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("options", [{}, {"attention": "reformer"}, {"encoder_layerdrop": 0.5}], ids=str)
def test_activation_checkpointing_and_offload_give_the_same_gradients(options, autocast):
    """The second computation has the masks, hashes and precision of the first."""

    def gradients(**more):
        model, batch = small(**options, **DROPOUT, **more).to(DEVICE), tokens().to(DEVICE)
        torch.manual_seed(3)
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=autocast):
            loss = model(batch, masked_tokens=batch < 20)[0].float().logsumexp(-1).mean()
        loss.backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    plain = gradients()
    for more in (RECOMPUTED, OFFLOADED):
        recomputed = gradients(**more)
        assert recomputed.keys() == plain.keys()
        for name, gradient in recomputed.items():
            torch.testing.assert_close(gradient, plain[name], atol=1e-6, rtol=1e-5, msg=name)


def test_activation_checkpointing_keeps_the_input_of_each_layer_and_offload_moves_it():
    """The parameters keep their names."""

    def kept(**options):
        """Return the number of elements that PyTorch saves for the backward pass, without parameters."""
        model, sizes = small(encoder_layers=3, **DROPOUT, **options), []
        encoder = model.encoder.sentence_encoder
        parameters = {id(parameter) for parameter in encoder.parameters()}
        x = torch.randn(2, 64, 24, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: id(t) in parameters or sizes.append(t.numel()), lambda _: None
        ):
            encoder.encode(x, None)
        return sum(sizes), list(model.state_dict())

    plain, names = kept()
    assert plain > 10 * 3 * 2 * 64 * 24
    assert kept(**RECOMPUTED) == (3 * 2 * 64 * 24, names)
    assert kept(**OFFLOADED) == (0, names)


@pytest.mark.parametrize("options", [{}, {"encoder_normalize_before": True}, RECOMPUTED], ids=str)
def test_the_last_layer_at_some_positions_only(options):
    """Outputs and gradients are those of all positions, for masked ones and, with a classification head, for <s>."""
    model, batch = small(dropout=0.0, attention_dropout=0.0, **options), tokens(3)
    batch[1, 20:] = 1
    masked = (torch.rand(batch.shape, generator=torch.Generator().manual_seed(2)) < 0.2) & batch.ne(1)
    model.register_classification_head("head", num_classes=3)
    model.double()
    heads = {
        "masked": (
            lambda: model(batch, masked_tokens=masked)[0],
            lambda: model.encoder.lm_head(model(batch, features_only=True)[0], masked),
        ),
        "<s>": (
            lambda: model(batch, features_only=True, classification_head_name="head")[0],
            lambda: model.classification_heads["head"](model(batch, features_only=True)[0]),
        ),
    }
    for at_some, at_all in heads.values():
        torch.testing.assert_close(at_some(), at_all(), atol=1e-12, rtol=0)
        gradients = [gradients_of(model, logits().square().sum()) for logits in (at_some, at_all)]
        torch.testing.assert_close(*gradients, atol=1e-9, rtol=0)


@pytest.mark.parametrize("options", [{}, {"linformer_window": 2, "projection": "split-pool"}], ids=str)
def test_a_head_on_the_mean_over_the_text(options):
    """The mean excludes padding."""
    model, batch = small(classifier_pooling="mean", **options).eval(), tokens(3, 12)
    batch[1, 5:], batch[2, 1:] = 1, 1
    model.register_classification_head("head", num_classes=3)
    model.double()
    head = model.classification_heads["head"]
    logits, extra = model(batch, features_only=True, classification_head_name="head")
    assert extra["inner_states"] is None
    for row, length in enumerate((12, 5, 1)):
        features = model(batch[row : row + 1, :length], features_only=True)[0]
        torch.testing.assert_close(logits[row : row + 1], head(features.mean(1, keepdim=True)), atol=1e-12, rtol=0)
    with_states, extra = model(batch, True, return_all_hiddens=True, classification_head_name="head")
    assert torch.equal(with_states, logits) and len(extra["inner_states"]) == 3
