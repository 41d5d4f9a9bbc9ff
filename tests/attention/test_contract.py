"""The contract of every mechanism in the registry, at odd lengths and head counts.

Options are combined pairwise: each mechanism with each of its options, each projection with each sharing, each relative
position with each mechanism that has them; heads and projected lengths take turns.
"""

import copy
import importlib
import importlib.util
from itertools import cycle

import pytest
import torch

from fairseq_linformer.attention import ATTENTIONS, get_attention, register_attention
from fairseq_linformer.attention.linformer import PROJECTIONS, SHARINGS, ProjectedAttention, embedding_first
from fairseq_linformer.attention.projection import NOISE
from fairseq_linformer.errors import UserError
from fairseq_linformer.precision import with_bfloat16_products
from tests.helpers.layers import D, LargestTensor, N, build
from tests.reference import naive_attention

HEADS, SIZES = cycle((3, 2)), cycle(({"heads": 3, "k": 5}, {"heads": 2, "k": 15}, {"heads": 6, "k": 1}))
CASES = [
    (name, {"heads": next(HEADS), **options})
    for name, kind in ATTENTIONS.items()
    if not issubclass(kind, ProjectedAttention)
    for options in kind.Options.TEST_CASES
]
CASES += [
    ("linformer", {"projection": projection, "sharing": sharing, **next(SIZES)})
    for projection, kind in PROJECTIONS.items()
    for sharing in kind.SHARINGS
]
ROWS = cycle(("linear", "mean-pool", "split-pool"))  # all attended to, not all, and one per head
CASES += [("revisited-linformer", {"projection": next(ROWS), "sharing": "key-value", **next(SIZES)}) for _ in range(3)]
CASES += [
    ("linformer", {"projection": projection, "sharing": kind.SHARINGS[number % 2], "adaptive": True})
    for number, (projection, kind) in enumerate(PROJECTIONS.items())
]
CASES += [
    ("linformer", {"projection": next(ROWS), "sharing": "key-value", **options})
    for options in ATTENTIONS["linformer"].Options.TEST_CASES[1:]
    for _ in range(2)
]
ROTARY, ALIBI = {"positions": "rotary", "share": 0.5, "heads": 3}, {"positions": "alibi", "heads": 3}
CASES += [
    (name, {**options, **relative})
    for name, kind in ATTENTIONS.items()
    if kind.RELATIVE_POSITIONS and name != "linformer"  # whose windows alone have them
    for options, relative in zip(cycle(kind.Options.TEST_CASES), (ROTARY, {"positions": "rotary"}, ALIBI), strict=False)
    if name != "long-short" or relative != {"positions": "rotary"}  # whose summaries need unrotated dimensions
]
WINDOW = {"linformer_window": 2, "linformer_block": 2}
FIRST = {"linformer_sinks": 3, "linformer_class_token": True}
CASES += [
    ("linformer", {"sharing": "key-value", **options})
    for options in (
        {"adaptive": True, "k": N},
        {"linformer_window": 4, "linformer_class_token": True},
        {"projection": "max-pool", "linformer_window": 4, "adaptive": True},
        {**WINDOW, **FIRST, "projection": "mean-pool", "k": 15},  # each projected key is one position
        {**WINDOW, **FIRST, **ROTARY, "projection": "mean-pool"},
        {"positions": "rotary", "projection": "split-pool", "linformer_window": 4, "linformer_sinks": 2},
        {**WINDOW, "projection": "split-pool", "linformer_block": 3, "adaptive": True},
        {**WINDOW, "projection": "split-pool", "adaptive": True, **ALIBI},
        {**WINDOW, "projection": "attention-pool", "linformer_block": 5},
    )
]
CASES += [("alternating", {"alternating_full": "linformer", "projection": "mean-pool", "sharing": "key-value"})]
EACH = pytest.mark.parametrize(("name", "options"), CASES, ids=str)
AT_THE_ENDS = [  # windows, blocks, strides, … of one position, and of more than the text has
    ("sparse", {"sparse_pattern": "strided", "sparse_stride": 1}),
    ("sparse", {"sparse_pattern": "strided", "sparse_stride": 100}),
    ("sparse", {"sparse_stride": 1, "sparse_expressivity": 1}),
    ("sparse", {"sparse_stride": 4, "sparse_expressivity": 4}),
    ("bigbird", {"bigbird_block": 64}),
    ("bigbird", {"bigbird_block": 1, "bigbird_random_blocks": N}),
    ("longformer", {"longformer_window": 512, "longformer_global_tokens": 0}),
    ("longformer", {"longformer_window": 2, "longformer_global_tokens": N}),
    ("long-short", {"long_short_window": 4 * N, "long_short_rank": 2}),
    ("nystrom", {"nystrom_landmarks": 64, "nystrom_conv_width": 0}),
    ("reformer", {"reformer_chunk_length": 8, "reformer_hashes": 4}),
    ("reformer", {"reformer_chunk_length": 64, "reformer_hashes": 1}),
]


def reference_of(name):
    """Return the function of the naive reference: in naive_attention.py, or ``reference`` in NAME.py."""
    if hasattr(naive_attention, name):
        return getattr(naive_attention, name)
    module = f"tests.reference.{name.replace('-', '_')}"
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{name} has no naive reference: write {module.replace('.', '/')}.py")
    return importlib.import_module(module).reference


@pytest.mark.parametrize(("name", "options"), CASES + AT_THE_ENDS, ids=str)
def test_equals_naive_reference_with_gradients(name, options):
    """One row suffices, as test_padding_is_invisible compares a row with the same one in a batch."""
    attention = build(name, **options)[0].double()
    inputs = [parameter for parameter in attention.parameters() if parameter.requires_grad]
    for length in (1, 7, N):
        x = torch.randn(1, length, D, dtype=torch.float64, requires_grad=True)
        out, expected = attention(x), reference_of(name)(attention, x[0]).unsqueeze(0)
        torch.testing.assert_close(out, expected, atol=1e-9, rtol=0)
        weights = torch.randn_like(out)
        unused = {"allow_unused": True, "materialize_grads": True}  # a single position has nothing to choose from
        gradients = (torch.autograd.grad((y * weights).sum(), [x, *inputs], **unused) for y in (out, expected))
        torch.testing.assert_close(*gradients, atol=1e-9, rtol=0)


@EACH
def test_padding_is_invisible(name, options):
    """A row is the same alone, padded and in a batch with others; padding has no effect, and no gradient."""
    attention = build(name, **options)[0]
    x = torch.randn(2, N, D, requires_grad=True)
    mask = torch.arange(N) >= torch.tensor([[N], [8]])
    alone = attention(x[1:, :8])
    padded = attention(x[1:, :11], mask[1:, :11])[:, :8]
    batch = attention(x.masked_fill(mask.unsqueeze(-1), 1e4), mask)
    torch.testing.assert_close(batch[:1], attention(x[:1]), atol=1e-5, rtol=0)
    torch.testing.assert_close(padded, alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(batch[1:, :8], alone, atol=1e-5, rtol=0)
    (gradient,) = torch.autograd.grad(attention(x, mask)[1, :8].sum(), x)
    assert gradient[1, :8].abs().max() > 0
    assert gradient[1, 8:].abs().max() == 0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bigbird", {"bigbird_block": 2, "bigbird_random_blocks": 0}),
        ("longformer", {"longformer_window": 2, "longformer_global_tokens": 0}),
        ("sparse", {"sparse_pattern": "strided", "sparse_stride": 4}),
        *(case for case in CASES if case[0] in ("linear", "lion", "performer", "rfa")),
    ],
)
def test_queries_without_keys_have_finite_outputs_and_gradients(name, options):
    """In a window, or a row, of padding alone."""
    attention = build(name, **options)[0]
    x = torch.randn(3, N, D, requires_grad=True)
    out = attention(x, torch.arange(N) >= torch.tensor([[1], [N], [0]]))
    assert out.isfinite().all()
    out.sum().backward()
    gradients = [x.grad, *(parameter.grad for parameter in attention.parameters() if parameter.grad is not None)]
    assert all(gradient.isfinite().all() for gradient in gradients)


@EACH
def test_a_value_residual_of_a_linear_map_is_another_value_map(name, options):
    """u V + w V_1 with V_1 = X W_1^T are the values of u W_v + w W_1, whatever V_1 is under padding."""
    attention, other = (build(name, **options)[1].double() for _ in range(2))
    attention.add_value_residual()
    torch.nn.init.normal_(attention.value_mix)
    weight, first_weight = attention.value_mix.detach()
    matrix = torch.randn(D, D, dtype=torch.float64)
    for value in (getattr(other, part) for part in ("v_proj", "v_proj_global") if hasattr(other, part)):
        value.weight.data.mul_(weight).add_(first_weight * matrix)
        value.bias.data.mul_(weight)
    mask = torch.arange(N) >= torch.tensor([[8], [N]])
    x = torch.randn(2, N, D, dtype=torch.float64)
    first_values = x @ matrix.T
    out = attention(x, mask, first_values.masked_fill(mask.unsqueeze(-1), 1e4))
    torch.testing.assert_close(out[1:], attention(x[1:], None, first_values[1:]), atol=1e-9, rtol=0)
    torch.testing.assert_close(out[0, :8], attention(x[:1, :8], None, first_values[:1, :8])[0], atol=1e-9, rtol=0)
    if options.get("projection") not in ("conv", "max-pool"):  # by channel: F V_1 is not F X times a matrix
        torch.testing.assert_close(out[~mask], other(x, mask)[~mask], atol=1e-9, rtol=0)


@EACH
def test_maps_without_biases_have_biases_of_zero(name, options):
    """With value residuals, which read the weights and biases of the maps."""
    without, attention = (build(name, attention_bias=value, **options)[1] for value in (False, True))
    for module in (without, attention):
        module.add_value_residual()
    names = {name for name in attention.state_dict() if name not in without.state_dict()}
    assert names >= {f"{part}.bias" for part in (*without.QKV_PROJECTIONS, "out_proj")}
    zeros = {name: torch.zeros_like(attention.state_dict()[name]) for name in names}
    attention.load_state_dict({**without.state_dict(), **zeros})
    x, first_values = torch.randn(2, N, D), torch.randn(2, N, D)
    mask = torch.arange(N) >= torch.tensor([[8], [N]])
    outputs = (module(x, mask, first_values)[~mask] for module in (without, attention))
    torch.testing.assert_close(*outputs, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("name", "options"), [case for case in CASES if ATTENTIONS[case[0]].HAS_WEIGHTS], ids=str)
def test_dropout_applies_in_training_alone(name, options):
    attention = build(name, dropout=0.5, **options)[0]
    x = torch.randn(2, N, D)
    assert not torch.equal(attention(x), attention(x))
    attention.eval()
    torch.testing.assert_close(attention(x), build(name, **options)[0](x))


AT_DEFAULTS = [(name, {}) for name in ATTENTIONS if name != "alternating"]  # its layers are softmax's and longformer's
AT_DEFAULTS += [(name, {"positions": "alibi"}) for name in ("bigbird", "long-short", "longformer")]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *AT_DEFAULTS,
        ("linformer", {"linformer_window": 64}),
        ("linformer", {"projection": "mean-pool", "linformer_window": 64, "linformer_block": 32, "linformer_sinks": 1}),
    ],
    ids=str,
)
def test_memory_grows_with_n_and_not_with_its_square(name, options):
    """Forward and backward, from n = 512 to 2,048, with each mechanism's default options: at most as n sqrt n."""
    largest = []
    for n in (512, 2048):
        attention = build(name, heads=1, n=n, k=64, d=8, **options)[0]
        x = torch.randn(1, n, 8, requires_grad=True)
        with LargestTensor() as recorded:
            attention(x).sum().backward()
        largest.append(recorded.elements)
    assert largest[1] < 1.1 * 4**1.5 * largest[0]
    assert largest[1] < 2048**2 / 2


@pytest.mark.parametrize(("name", "options"), AT_DEFAULTS, ids=str)
def test_half_precision_is_finite_and_accurate(name, options):
    """Activations are as large as in a trained model, and sums of n terms could overflow."""
    attention = build(name, heads=2, n=300, k=16, d=16, **options)[0]
    x = 4 * torch.randn(2, 300, 16)
    mask = torch.arange(300) >= torch.tensor([[300], [200]])
    exact = attention(x, mask)
    for dtype in (torch.float16, torch.bfloat16):
        half = copy.deepcopy(attention).to(dtype)(x.to(dtype), mask).float()
        assert half.isfinite().all()
        assert (half - exact)[~mask].norm() < 0.1 * exact[~mask].norm()


@pytest.mark.parametrize("name", ATTENTIONS)
def test_random_buffers_come_from_the_seed_and_are_in_the_checkpoint(name):
    first, second = build(name)[0].eval(), build(name)[0].eval()
    other = build(name, seed=7)[0].eval()
    x = torch.randn(2, N, D)
    torch.testing.assert_close(first(x), second(x), atol=0, rtol=0)
    other.load_state_dict(first.state_dict())
    torch.testing.assert_close(other(x), first(x), atol=0, rtol=0)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_linformer_with_identity_projection_is_softmax_attention(sharing):
    """Contract 1: k = n and E = F = I."""
    projected = build("linformer", sharing=sharing, k=N)[0]
    softmax = build("softmax")[0]
    with torch.no_grad():
        for projection in (projected.key_projection, projected.value_projection):
            projection.weight.copy_(torch.eye(N).expand_as(projection.weight))
    softmax.load_state_dict({k: v for k, v in projected.state_dict().items() if "projection" not in k})
    x = torch.randn(3, N, D)
    torch.testing.assert_close(projected(x), softmax(x), atol=1e-5, rtol=0)


class Adapted(torch.nn.Module):
    """Linear map and an addition to its output, as LoRA has them; weight and bias are those of the map alone."""

    def __init__(self, linear):
        super().__init__()
        self.base_layer, self.weight, self.bias = linear, linear.weight, linear.bias
        self.down, self.up = torch.nn.Linear(D, 2, bias=False), torch.nn.Linear(2, D)

    def forward(self, x):
        return self.base_layer(x) + self.up(self.down(x))

    def merged(self):
        """Return the same as one linear map."""
        linear = torch.nn.Linear(D, D)
        linear.weight.data = self.weight.data + self.up.weight.data @ self.down.weight.data
        linear.bias.data = self.bias.data + self.up.bias.data
        return linear


BY_WEIGHT = [
    {"sharing": "key-value"},
    {"sharing": "none"},
    {"sharing": "none", "k": 15},
    {"sharing": "headwise", "adaptive": True},
    {"projection": "attention-pool", "sharing": "headwise"},  # a row per head
    {"sharing": "key-value", "linformer_class_token": True},
    {"sharing": "none", "linformer_window": 4, "linformer_class_token": True},
]


@pytest.mark.parametrize("options", BY_WEIGHT, ids=str)
@pytest.mark.parametrize("length", [4, N])
def test_adapted_linear_maps_are_called(options, length):
    attention, other = (build("linformer", **options)[1].double() for _ in range(2))
    for name in attention.QKV_PROJECTIONS:
        adapted = Adapted(getattr(attention, name)).double()
        setattr(attention, name, adapted)
        setattr(other, name, adapted.merged())
    x, mask = torch.randn(2, length, D, dtype=torch.float64), torch.arange(length) >= torch.tensor([[length], [1]])
    for padding_mask in (None, mask):
        out = attention(x, padding_mask)
        torch.testing.assert_close(out, other(x, padding_mask), atol=1e-9, rtol=0)
    out.square().sum().backward()
    for name in attention.QKV_PROJECTIONS:
        assert getattr(attention, name).up.weight.grad.abs().max() > 0


def test_the_cheaper_order_is_chosen():
    """Keys and values are compressed first, except short ones, and with one matrix per head (k = 128, n = 512)."""
    sizes = {"heads": 12, "k": 128, "n": 512, "d": 768, "layers": 1}
    shared, per_head = (build("linformer", sharing=sharing, **sizes)[0] for sharing in ("layerwise", "none"))
    for attention, short_and_long in ((shared, [True, False]), (per_head, [True, True])):
        projections = attention.key_projection, attention.value_projection
        assert [embedding_first(*projections, length, 768) for length in (20, 512)] == short_and_long


@pytest.mark.parametrize(
    ("projection", "sharing"), [(name, sharing) for name, kind in PROJECTIONS.items() for sharing in kind.SHARINGS]
)
def test_numbers_of_parameters(projection, sharing):
    """Section 4 of the paper, for 12 layers of 12 heads; a shared parameter counts once."""
    layers = build("linformer", heads=12, projection=projection, sharing=sharing, layers=12, k=5)
    parameters = {id(p): p for layer in layers for name, p in layer.named_parameters() if "projection" in name}
    how_many = {"none": 288, "headwise": 24, "key-value": 12, "layerwise": 1}[sharing]
    of_one = {"linear": 5 * N, "random": 5 * N, "conv": N // 5 * D, "attention-pool": 12 * D}.get(projection, 0)
    assert sum(p.numel() for p in parameters.values()) == how_many * of_one


def test_initial_matrices():
    def initial(initialisation):
        layer = build("linformer", sharing="layerwise", k=64, n=512, initialisation=initialisation)[0]
        return layer.key_projection.weight.detach()

    means = torch.kron(torch.eye(64), torch.full((1, 8), 1 / 8))
    torch.testing.assert_close(initial("segment-mean"), means, atol=6 * NOISE, rtol=0)
    assert not torch.equal(initial("segment-mean"), means)
    for initialisation, deviation in (("normal", 0.02), ("johnson-lindenstrauss", 64**-0.5)):
        weight = initial(initialisation)
        assert abs(weight.mean()) < 0.05 * deviation
        assert abs(weight.std() / deviation - 1) < 0.02


@pytest.mark.parametrize(("multiplier", "c"), [(1.0, 1.0), (0.25, 0.25), (None, D / (4 * N))])
def test_the_multiplier_scales_adams_steps_alone(multiplier, c):
    """The matrix starts as without it, and its first step is c times the learning rate, whatever the gradient."""
    layer, plain = (build("linformer", sharing="layerwise", multiplier=each)[0] for each in (multiplier, 1.0))
    x = torch.randn(2, N, D)
    torch.testing.assert_close(layer(x), plain(x))
    weight = layer.key_projection.weight
    before = weight.detach().clone()
    optimizer = torch.optim.Adam([weight], lr=0.01, eps=1e-12)
    layer(x).square().sum().backward()
    optimizer.step()
    moved = layer.key_projection.multiplier * (weight.detach() - before)
    torch.testing.assert_close(moved.abs(), torch.full_like(moved, 0.01 * c), rtol=0.01, atol=0)


@pytest.mark.parametrize(("projection", "n", "c"), [("linear", 3, 1.0), ("linear", 4 * D, 1 / 16), ("random", N, 1.0)])
def test_the_default_multiplier(projection, n, c):
    """It is d / 4n, at most 1; a matrix that is not trained has 1."""
    assert build("linformer", projection=projection, n=n, k=3, multiplier=None)[0].key_projection.multiplier == c


ALL_LOCAL = {"linformer_window": 2 * N, "linformer_sinks": 0, "positions": "rotary"}  # sinks have no position


@pytest.mark.parametrize("options", [{}, ALL_LOCAL])
def test_texts_of_at_most_k_tokens_have_full_attention(options):
    """Also in a batch with a longer text; with rotary positions, if all keys are local."""
    options = {"linformer_window": 4, "linformer_block": 2, "linformer_sinks": 1, **options}
    softmax = build("softmax", positions=options.get("positions", "learned"))[0].double()
    pooled = build("linformer", projection="mean-pool", sharing="key-value", adaptive=True, k=5, **options)[0].double()
    pooled.load_state_dict(softmax.state_dict(), strict=False)
    x, mask = torch.randn(3, N, D, dtype=torch.float64), torch.zeros(3, N, dtype=torch.bool)
    for row, length in enumerate((5, 3)):
        mask[row, length:] = True
        expected = softmax(x[row : row + 1, :length])[0]
        torch.testing.assert_close(pooled(x[row : row + 1, :length])[0], expected)
        torch.testing.assert_close(pooled(x, mask)[row, :length], expected)


def test_windows_per_layer_have_no_parameters():
    without, with_windows = (build("linformer", sharing="none", linformer_window=window) for window in (0, [0, 4]))
    x = torch.randn(2, N, D)
    for layer, windowed, equal in zip(without, with_windows, (True, False), strict=True):
        windowed.load_state_dict(layer.state_dict())
        assert torch.equal(layer(x), windowed(x)) == equal


def test_the_registry_rejects_duplicates_and_unknown_names():
    with pytest.raises(UserError, match="attention=softmax"):
        register_attention("softmax")(ATTENTIONS["softmax"])
    with pytest.raises(UserError, match="attention=flash"):
        get_attention("flash")


@EACH
def test_bfloat16_products_give_nearly_what_float32_gives(name, options):
    if name == "reformer":
        pytest.skip("rounding may change the hashes by which keys are selected")
    attention, results = build(name, **options)[0].eval(), []
    x, padding_mask = torch.randn(3, N, D), torch.arange(N) >= torch.tensor([[N], [7], [1]])
    for call in (attention, with_bfloat16_products(attention)):
        inputs = x.clone().requires_grad_()
        out = call(inputs, padding_mask)[~padding_mask].float()
        results.append((out.detach(), *torch.autograd.grad(out.square().mean(), inputs)))
    for expected, result in zip(*results, strict=True):
        assert (result - expected).norm() < 0.05 * expected.norm()
