"""The contract of every mechanism in the registry, at odd lengths and head counts."""

from argparse import Namespace

import pytest
import torch

from fairseq_linformer.attention import ATTENTIONS, get_attention, register_attention
from fairseq_linformer.attention.linformer import SHARINGS
from tests.reference import naive_attention

N, D = 13, 12

CASES = [("softmax", {"heads": 3})] + [
    ("linformer", {"heads": heads, "sharing": sharing, "k": k})
    for sharing in SHARINGS
    for heads, k in ((3, 5), (2, 13), (6, 1))
]
IDS = ["-".join([name, *map(str, options.values())]) for name, options in CASES]


def build(name, heads=3, sharing="none", k=5, dropout=0.0, layers=2, frozen=False, n=N, d=D):
    """Layers of a mechanism with weights large enough that attention is far from uniform."""
    config = Namespace(
        encoder_layers=layers,
        encoder_embed_dim=d,
        encoder_attention_heads=heads,
        attention_dropout=dropout,
        max_positions=n,
        projected_length=k,
        sharing=sharing,
        freeze_projection=frozen,
    )
    torch.manual_seed(0)
    attentions = get_attention(name).build_layers(config)
    for attention in attentions:
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj):
            torch.nn.init.normal_(linear.weight, std=0.5)
            torch.nn.init.normal_(linear.bias, std=0.5)
    return attentions


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
@pytest.mark.parametrize("length", [1, 2, 7, N])
def test_equals_naive_reference_with_gradients(name, options, length):
    attention = build(name, **options)[0].double()
    x = torch.randn(2, length, D, dtype=torch.float64, requires_grad=True)
    out = attention(x)
    expected = torch.stack([getattr(naive_attention, name)(attention, row) for row in x])
    torch.testing.assert_close(out, expected, atol=1e-9, rtol=0)

    wanted = [x, *attention.parameters()]
    weights = torch.randn_like(out)
    gradients = torch.autograd.grad((out * weights).sum(), wanted)
    expected_gradients = torch.autograd.grad((expected * weights).sum(), wanted)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-9, rtol=0)


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
@pytest.mark.parametrize("training", [False, True])
def test_padding_is_invisible(name, options, training):
    """The same row alone, padded and beside a longer row. What stands under the padding must not matter either."""
    attention = build(name, **options)[0].train(training)
    x = torch.randn(2, N, D)
    mask = torch.zeros(2, N, dtype=torch.bool)
    mask[1, 8:] = True
    alone = attention(x[1:, :8])
    padded = attention(x[1:, :11], mask[1:, :11])[:, :8]
    beside = attention(x.masked_fill(mask.unsqueeze(-1), 1e4), mask)[1:, :8]
    torch.testing.assert_close(padded, alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(beside, alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_no_gradient_from_padding(name, options):
    attention = build(name, **options)[0]
    x = torch.randn(1, N, D, requires_grad=True)
    mask = torch.arange(N).unsqueeze(0) >= 6
    attention(x, mask)[0, :6].sum().backward()
    assert x.grad[0, :6].abs().max() > 0
    assert x.grad[0, 6:].abs().max() == 0


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_dropout_reaches_attention_weights_in_training_alone(name, options):
    attention = build(name, dropout=0.5, **options)[0]
    x = torch.randn(2, N, D)
    assert not torch.equal(attention(x), attention(x))
    attention.eval()
    torch.testing.assert_close(attention(x), build(name, **options)[0](x))


@pytest.mark.parametrize("sharing", SHARINGS)
def test_linformer_with_identity_projection_is_softmax_attention(sharing):
    """Contract 1: k = n and E = F = I."""
    linformer, softmax = build("linformer", sharing=sharing, k=N)[0], build("softmax")[0]
    with torch.no_grad():
        for projection in (linformer.key_projection, linformer.value_projection):
            projection.weight.copy_(torch.eye(N).expand_as(projection.weight))
    softmax.load_state_dict({k: v for k, v in linformer.state_dict().items() if "projection" not in k})
    x = torch.randn(3, N, D)
    torch.testing.assert_close(linformer(x), softmax(x), atol=1e-5, rtol=0)


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("length", [1, 5, N])
def test_both_orders_of_projecting_agree(monkeypatch, sharing, length):
    attention = build("linformer", sharing=sharing)[0].double()
    x = torch.randn(2, length, D, dtype=torch.float64)
    outputs = []
    for answer in (False, True):
        monkeypatch.setattr(attention, "embedding_first", lambda length, answer=answer: answer)
        outputs.append(attention(x))
    torch.testing.assert_close(*outputs, atol=1e-12, rtol=0)


def test_the_cheaper_order_is_taken():
    """The paper's base size, k = 128: keys and values are compressed first, except for short or per-head ones."""
    shared, per_head = (build("linformer", 12, sharing, 128, n=512, d=768)[0] for sharing in ("layerwise", "none"))
    assert [shared.embedding_first(length) for length in (20, 512)] == [True, False]
    assert [per_head.embedding_first(length) for length in (20, 512)] == [True, True]


@pytest.mark.parametrize(
    ("sharing", "matrices"), [("none", 288), ("headwise", 24), ("key-value", 12), ("layerwise", 1)]
)
def test_number_of_matrices_is_the_papers(sharing, matrices):
    """Section 4 of the paper, for 12 layers of 12 heads; shared means the same parameter, not an equal one."""
    layers = build("linformer", heads=12, sharing=sharing, layers=12)
    parameters = {id(p): p for layer in layers for name, p in layer.named_parameters() if "projection" in name}
    assert sum(p.numel() for p in parameters.values()) == matrices * 5 * N


def test_projection_starts_as_segment_means():
    projection = build("linformer", sharing="layerwise", k=4, n=8)[0].key_projection
    means = projection(torch.arange(8.0).view(1, 8, 1)).flatten()
    torch.testing.assert_close(means, torch.tensor([0.5, 2.5, 4.5, 6.5]), atol=0.1, rtol=0)


def test_frozen_projection_is_not_trained():
    layers = build("linformer", sharing="headwise", frozen=True)
    trained = [name for layer in layers for name, p in layer.named_parameters() if p.requires_grad]
    assert trained and not any("projection" in name for name in trained)


def test_registry_refuses_duplicates_and_unknown_names():
    with pytest.raises(ValueError, match="attention=softmax is registered already, by SoftmaxAttention"):
        register_attention("softmax")(ATTENTIONS["softmax"])
    with pytest.raises(ValueError, match="attention=flash is not known; choose from linformer, softmax"):
        get_attention("flash")
