"""Numbers of spectra, of low-rank approximations and of the rows of E and F, against plain computations."""

import math

import pytest
import torch

from fairseq_linformer.analysis import low_rank
from fairseq_linformer.analysis.low_rank import OWN, Errors, heads_of, ranks_to_try, relative_errors
from fairseq_linformer.analysis.maps import projected_weights
from fairseq_linformer.analysis.matrices import dead_rows, distinct_matrices, row_statistics
from fairseq_linformer.analysis.measuring import attentions_of, in_short, inputs_of, measure
from fairseq_linformer.analysis.spectrum import cumulative, effective_rank, heat_index, theorem_1, theorem_2
from tests.helpers.layers import D, N, build, leaving_heads
from tests.helpers.models import small, tokens


def test_cumulative_values_are_sums_of_singular_values():
    matrix = torch.diag(torch.tensor([1.0, 4.0, 3.0, 2.0]))
    assert cumulative(torch.linalg.svdvals(matrix)).tolist() == pytest.approx([0.4, 0.7, 0.9, 1.0])


@pytest.mark.parametrize("share, rank", [(0.1, 1), (0.4, 1), (0.41, 2), (0.89, 3), (0.9, 3), (0.99, 4), (1.0, 4)])
def test_the_effective_rank_is_the_first_that_reaches_the_share(share, rank):
    """And at most n, where rounding leaves less than all."""
    assert effective_rank(torch.tensor([0.4, 0.7, 0.9, 1.0], dtype=torch.double), share) == rank
    assert effective_rank(torch.tensor([0.5, 0.98]), 0.99) == 2


def test_theorems():
    """At n = 512, with natural logarithms: the least k of theorem 1 is 5 ln n / (4 / 27)."""
    assert theorem_1(512, 2 / 3) == pytest.approx(5 * math.log(512) * 27 / 4) == pytest.approx(210.5, abs=0.1)
    assert theorem_2(512, 64, 0.5) == pytest.approx(4 * 5 * math.log(512))
    assert theorem_2(10**9, 2, 0.5) == pytest.approx(4 * 9 * 2 * math.log(2))  # few features: n does not matter


def test_which_value_the_heat_map_shows():
    assert [heat_index(n, None) for n in (4096, 512, 128, 3)] == [128, 128, 32, 1]
    assert [heat_index(512, chosen) for chosen in ([256, 512], [128, 64], [1])] == [128, 32, 1]


@pytest.mark.parametrize("n, ranks", [(512, [16, 32, 64, 128, 256]), (100, [16, 32]), (20, [10]), (1, [1])])
def test_ranks_to_try(n, ranks):
    assert ranks_to_try(n) == ranks


@pytest.fixture
def layer():
    torch.manual_seed(2)
    return build("linformer", sharing="none")[0].double().eval(), torch.randn(1, N, D, dtype=torch.double)


OWN_PARTS = [
    {"sharing": "none"},
    {"linformer_window": 4, "linformer_class_token": True},
    {"projection": "split-pool", "sharing": "key-value", "linformer_window": 4},
]


@pytest.mark.parametrize("value_residual", [False, True])
@pytest.mark.parametrize("options", OWN_PARTS, ids=lambda own: "-".join(map(str, own.values())))
@torch.no_grad()
def test_errors_of_the_model_are_those_of_its_output(options, value_residual):
    """The distance of what leaves its heads, by whatever it has, from full attention with the same weights."""
    attention, x = build("linformer", **options)[0].eval(), torch.randn(1, N, D, dtype=torch.double)
    first = None
    if value_residual:
        attention.add_value_residual()
        attention.value_mix.copy_(torch.tensor([0.7, -0.4]))
        first = torch.randn_like(x)
    attention.double()
    errors = Errors()
    errors.add(attention, x, first)
    full = attention.attend(*map(attention.split_heads, attention.project(x, first)))[0]
    expected = ((leaving_heads(attention, x, first)[0] - full).norm(dim=1) / full.norm(dim=1)).flatten()
    torch.testing.assert_close(torch.cat(errors.errors["linformer", OWN, 5]), expected)
    point = errors.summary()["linformer"][OWN][0]
    assert point["k"] == 5 and point["median"] == pytest.approx(float(expected.quantile(0.5)))
    assert point["p5"] == pytest.approx(float(expected.quantile(0.05)))


@torch.no_grad()
def test_a_linformer_of_identity_matrices_has_no_error():
    """Its keys are those of full attention, with their bias."""
    attention, x = build("linformer")[0].double(), torch.randn(1, N, D, dtype=torch.double)
    identity = torch.eye(N, dtype=torch.double)
    for head in heads_of(attention, x, None):
        torch.testing.assert_close(head.linformer(identity, identity), head.weights @ head.all_values)


@torch.no_grad()
def test_errors_of_projections(layer):
    """Segment means: P with each value replaced by the mean of its segment. The SVD: the best of that rank."""
    attention, x = layer
    errors = Errors()
    errors.add(attention, x)
    k = ranks_to_try(N)[0]  # 7 segments of 15 positions
    head = next(heads_of(attention, x, None))
    exact = head.weights @ head.all_values
    averages = torch.stack(
        [head.all_values[j * N // k : ((j + 1) * N + k - 1) // k].mean(0) for j in range(k)]
    )  # some positions are in two segments
    segments = torch.stack([_indicator(j * N // k, ((j + 1) * N + k - 1) // k) for j in range(k)])
    fitted = segments.T @ torch.linalg.lstsq(segments.T, head.all_values).solution
    expected = (head.weights @ fitted - exact).norm(dim=0) / exact.norm(dim=0)
    torch.testing.assert_close(errors.errors["projected", "segment means", k][0], expected)
    weights = (head.queries @ averages_of(head, segments).T * attention.head_dim**-0.5).softmax(-1)
    expected = (weights @ averages - exact).norm(dim=0) / exact.norm(dim=0)
    torch.testing.assert_close(errors.errors["linformer", "segment means", k][0], expected)
    best = errors.errors["projected", "truncated SVD", k][0]
    values = torch.linalg.svdvals(head.weights)
    bound = values[k] * head.all_values.norm(dim=0) / exact.norm(dim=0)  # Eckart and Young, in the spectral norm
    assert (best <= bound + 1e-9).all()


def _indicator(start, end):
    row = torch.zeros(N, dtype=torch.double)
    row[start:end] = 1.0
    return row


def averages_of(head, segments):
    return segments @ head.keys / segments.sum(1, keepdim=True) + head.key_bias


def test_gaussian_matrices_keep_lengths_on_average():
    drawn = torch.stack([Errors().draw(8, torch.zeros(1, 50)) for _ in range(2)])
    assert torch.equal(drawn[0], drawn[1])  # of one seed
    assert float(Errors().draw(4000, torch.zeros(1, 50)).square().sum(0).mean()) == pytest.approx(1, abs=0.02)


@torch.no_grad()
def test_the_bounds_of_the_theorems(layer, monkeypatch):
    """With the identity for R nothing is lost, and with zeros everything."""
    attention, x = layer
    monkeypatch.setattr(low_rank, "EPSILONS", (0.5,))
    for matrix, share in ((torch.eye(N, dtype=torch.double), 1.0), (torch.zeros(3, N, dtype=torch.double), 0.0)):
        errors = Errors()
        monkeypatch.setattr(errors, "draw", lambda k, like, matrix=matrix: matrix)
        errors.add(attention, x)
        found = {(bound["theorem"], bound["of"]): bound for bound in errors.bounds(N, attention.head_dim)}
        assert found["theorem 1", "columns"]["share_within"] == share
        assert found["theorem 1", "columns"]["k"] == math.ceil(5 * math.log(N) * 8)
        assert found["theorem 1", "columns"]["error_p95"] == pytest.approx(1 - share, abs=1e-9)
        if share:
            assert found["theorem 1", "products"]["share_within"] == found["theorem 2", "Gaussian"]["share_within"] == 1


@torch.no_grad()
def test_full_attention_has_no_approximation_of_its_own(layer):
    errors = Errors()
    errors.add(build("softmax")[0].double().eval(), layer[1])
    assert not any(kind == OWN for _, kind, _ in errors.errors)


@pytest.mark.parametrize("attention", ["softmax", "linformer"])
@pytest.mark.parametrize("positions", [{"positions": "rotary", "rotary_share": 0.5}, {"positions": "alibi"}])
@torch.no_grad()
def test_other_positions_are_not_compared_with_a_linformer_without_any(attention, positions, layer):
    """Even of identity matrices: P has positions, and a projected row has none."""
    own, x = build(attention, **positions)[0].double().eval(), layer[1]
    head = next(heads_of(own, x, None))
    identity = torch.eye(N, dtype=torch.double)
    assert relative_errors(head.linformer(identity, identity), head.weights @ head.all_values).min() > 0.001
    errors = Errors()
    errors.add(own, x)
    compared = {kind for form, kind, _ in errors.errors if form == "linformer"}
    assert compared == ({OWN} if attention == "linformer" else set())
    assert {kind for form, kind, _ in errors.errors if form == "projected"} > {"Gaussian", "segment means"}
    assert {theorem for theorem, *_ in errors.kept} == {"theorem 1"}


def test_rows_of_known_shape():
    """Of 4 rows and 16 positions: its own segment, one position elsewhere, everywhere, every fourth position."""
    matrix = torch.zeros(4, 16)
    matrix[0, :4], matrix[1, 0], matrix[2], matrix[3, ::4] = 0.5, 2.0, 1.0, 3.0
    found = row_statistics(matrix)
    assert found["norm"].tolist() == pytest.approx([1, 2, 4, 6])
    assert found["local"].tolist() == pytest.approx([1, 0, 0.25, 0.25])
    assert found["width"].tolist() == pytest.approx([4, 1, 16, 4])
    assert found["uniform"].tolist() == pytest.approx([0.25, 1 / 16, 1, 0.25])
    assert found["period"][3] == 4 and found["periodic"][3] == pytest.approx(2 / 3)  # frequencies 4, 8 and 12
    assert found["periodic"][2] == pytest.approx(0)


def test_a_cosine_is_one_frequency():
    row = torch.cos(2 * math.pi * 3 * torch.arange(15.0) / 15).unsqueeze(0)
    found = row_statistics(row)
    assert found["period"].item() == 5 and found["periodic"].item() == pytest.approx(1)


def test_dead_rows():
    assert dead_rows(torch.tensor([1.0, 0.09, 0.0, 1.2, 1.1])) == [1, 2]
    assert dead_rows(torch.tensor([1.0, 0.2, 1.0])) == []
    assert dead_rows(torch.zeros(2)) == [0, 1]


@pytest.mark.parametrize(
    "sharing, expected",
    [
        ("none", [(letter, layer, head) for layer in (0, 1) for letter in "EF" for head in (0, 1, 2)]),
        ("headwise", [("E", 0, None), ("F", 0, None), ("E", 1, None), ("F", 1, None)]),
        ("key-value", [("E = F", 0, None), ("E = F", 1, None)]),
        ("layerwise", [("E = F", None, None)]),
    ],
)
def test_every_matrix_is_described_once(sharing, expected):
    attentions = build("linformer", sharing=sharing, multiplier=0.5)
    found = list(distinct_matrices(attentions))
    assert [(one.letters, one.layer, one.head) for one in found] == expected
    weight = attentions[0].key_projection.weight
    assert torch.equal(found[0].values, 0.5 * (weight[0] if weight.dim() == 3 else weight))


def test_a_model_is_measured_over_all_rows():
    model = small(attention="linformer", max_positions=64, sharing="headwise").eval()
    encoder, rows = model.encoder.sentence_encoder, tokens(3)
    measured, single = measure(encoder, rows, [8, 8]), [measure(encoder, row[None], [8, 8]) for row in rows]
    curves = torch.tensor([one.spectrum["cumulative"] for one in single], dtype=torch.double).mean(0)
    torch.testing.assert_close(torch.tensor(measured.spectrum["cumulative"], dtype=torch.double), curves)
    assert (curves[..., 8:] > 0.9999).all()  # a rank of at most k
    assert measured.spectrum["heat_map"][1][2] == pytest.approx(float(curves[1, 2, 3]))
    uses = torch.tensor([[layer["use"] for layer in one.matrices["layers"]] for one in single]).mean(0)
    torch.testing.assert_close(torch.tensor([layer["use"] for layer in measured.matrices["layers"]]), uses)
    assert uses.mean(1).tolist() == pytest.approx([1, 1])
    short = in_short(measured)
    assert len(short["effective rank at 90%"]) == len(short["local"]) == len(short["unused rows"]) == 2
    own = measured.matrices["matrices"]
    assert short["width"][1] == pytest.approx((own[2]["median"]["width"] + own[3]["median"]["width"]) / 2)


@torch.no_grad()
def test_values_are_those_that_a_value_residual_gives_a_layer():
    """The first layer's are in those of all others."""
    encoder = small(attention="linformer", max_positions=64, value_residual=True).eval().encoder.sentence_encoder
    layers, row = attentions_of(encoder), tokens(1)
    (_, first), (own, x) = zip(layers, inputs_of(encoder, row[0]), strict=True)
    errors = Errors()
    errors.add(own, x, layers[0].v_proj(first))
    assert measure(encoder, row, [8, 8]).low_rank["layers"][1]["linformer"][OWN] == errors.summary()["linformer"][OWN]


@torch.no_grad()
def test_rows_beside_a_window_are_measured_by_what_they_get_of_its_attention():
    """Their share of attention, and each one's use as a multiple of the mean row's."""
    model = small(attention="linformer", max_positions=64, linformer_window=8).eval()
    encoder, rows = model.encoder.sentence_encoder, tokens(1)
    layers = measure(encoder, rows, [8, 8]).matrices["layers"]
    for layer, attention, x in zip(layers, attentions_of(encoder), inputs_of(encoder, rows[0]), strict=True):
        weights = projected_weights(attention, x).rows.mean((0, 1))  # (m,)
        assert 0.1 < layer["share"] < 0.9
        assert layer["share"] == pytest.approx(float(weights.sum()), rel=1e-5)
        assert layer["use"] == pytest.approx((weights / weights.mean()).tolist(), rel=1e-5)


def test_rows_that_a_window_shows_already_are_unused():
    """Each row is one position, which its window shows: all attention goes there."""
    options = {"projection": "mean-pool", "projected_length": 64, "adaptive_length": True, "linformer_window": 128}
    model = small(attention="linformer", max_positions=64, **options).eval()
    layers = measure(model.encoder.sentence_encoder, tokens(1), [64, 64]).matrices["layers"]
    assert layers == 2 * [{"share": 0, "use": 64 * [0], "unused": [*range(64)]}]


def test_the_cumulative_values_are_those_of_the_naive_map():
    """Of the second layer, which reads what the first one gives."""
    model = small(attention="softmax", max_positions=64).eval()
    encoder, row = model.encoder.sentence_encoder, tokens(1)
    with torch.no_grad():
        _, states = encoder(row, keep_states=True)
        attention, x = encoder.layers[1].self_attn, states[1]
        query, key = (attention.split_heads(linear(x))[0, 2] for linear in (attention.q_proj, attention.k_proj))
        values = torch.linalg.svdvals((query @ key.T / attention.head_dim**0.5).softmax(-1))
    found = measure(encoder, row, None)
    assert found.spectrum["cumulative"][1][2] == pytest.approx((values.cumsum(0) / values.sum()).tolist(), abs=1e-5)
    assert found.matrices is None and found.spectrum["projected_length"] is None
