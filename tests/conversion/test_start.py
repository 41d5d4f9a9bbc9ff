"""What a model takes over from another: outputs that must stay, positions, E and F, and what has no counterpart."""

import pytest
import torch

from fairseq_linformer.attention.adaptive import adaptive_pooling
from fairseq_linformer.conversion.start import interpolated, start_from, stretched, tiled
from tests.helpers.models import small, tokens

SOFTMAX = {"attention": "softmax"}
BIGBIRD = {"attention": "bigbird", "bigbird_block": 4, "bigbird_random_blocks": 2}
REFORMER = {"attention": "reformer", "reformer_chunk_length": 4, "reformer_hashes": 2}
FEATURES = [{"attention": name, "attention_dropout": 0.0} for name in ("performer", "rfa")]
DRAWN = {"bigbird": ["random_blocks"], "reformer": ["rotations"]}  # buffers that are larger for longer texts


COPIED = [SOFTMAX, {"sharing": "none"}, {"sharing": "layerwise"}, {"local_conv": 3}, BIGBIRD, REFORMER, *FEATURES]


def trained(**options):
    """A model that is not at its start: all of its parameters are random, and large enough for sharp attention."""
    model = small(seed=2, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    return model.eval()


def started(source, extension="tile", **options):
    model = small(**options).eval()
    state = source.state_dict()
    model.upgrade_state_dict(state)
    return model, start_from(model, state, extension)


@torch.no_grad()
def assert_same_logits(model, other, rows):
    torch.testing.assert_close(model(rows)[0], other(rows)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", COPIED)
def test_the_same_model_is_a_copy(options):
    source = trained(**options)
    model, (new, left_out) = started(source, **options)
    assert new == left_out == []
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in model.state_dict().items())


def test_full_attention_is_linformer_with_a_row_for_every_position():
    source = trained(**SOFTMAX)
    model, (new, left_out) = started(source, attention="linformer", projection="mean-pool", projected_length=64)
    assert new == left_out == []
    padded = tokens()
    padded[1, 40:] = 1
    for rows in (tokens(), padded):
        real = rows.ne(1)
        with torch.no_grad():
            torch.testing.assert_close(model(rows)[0][real], source(rows)[0][real], rtol=1e-5, atol=1e-5)


def test_learned_matrices_start_on_their_own_and_are_named():
    model, (new, left_out) = started(trained(**SOFTMAX), attention="linformer", sharing="layerwise")
    assert new == ["encoder.sentence_encoder.layers.0.self_attn.key_projection.weight"] and left_out == []
    projection = model.encoder.sentence_encoder.layers[0].self_attn.key_projection
    matrix = (projection.multiplier * projection.weight).detach()
    torch.testing.assert_close(matrix, adaptive_pooling(torch.tensor(64), 8, 64, matrix.dtype), atol=0.02, rtol=0)


def test_a_convolution_of_its_own_adds_nothing_and_one_of_the_source_is_left_out():
    source = trained(**SOFTMAX)
    model, (new, _) = started(source, **SOFTMAX, local_conv=5)
    assert len(new) == 4  # weight and bias of two layers
    assert_same_logits(model, source, tokens())
    _, (new, left_out) = started(model, **SOFTMAX)
    assert new == [] and [".local_conv." in name for name in left_out] == [True] * 4


@pytest.mark.parametrize("extension", ["tile", "interpolate"])
@pytest.mark.parametrize("options", [SOFTMAX, {"projection": "mean-pool"}, {"linformer_window": 8}, BIGBIRD, REFORMER])
def test_a_model_for_longer_texts_runs_at_their_length(extension, options):
    source = trained(**options)
    model, (new, _) = started(source, extension, **options, max_positions=128)
    assert model(tokens(length=128))[0].isfinite().all()
    drawn = DRAWN.get(options.get("attention"), [])
    assert [name.rpartition(".")[2] for name in new] == 2 * drawn
    if extension == "tile" and (drawn or options == SOFTMAX):
        assert_same_logits(model, source, tokens())


def test_mean_pooling_of_the_same_windows_reads_short_texts_as_before():
    source = trained(projection="mean-pool")
    model, _ = started(source, projection="mean-pool", max_positions=192, projected_length=24)
    assert_same_logits(model, source, tokens())


def test_tiled_and_interpolated_positions():
    positions = torch.tensor([[9.0], [8.0], [0.0], [4.0], [8.0]])  # two rows of no position, then three
    assert tiled(positions, 7).flatten().tolist() == [9, 8, 0, 4, 8, 0, 4, 8, 0]
    assert interpolated(positions, 5).flatten().tolist() == [9, 8, 0, 2, 4, 6, 8]


@pytest.mark.parametrize("heads", [(), (3,)])
def test_stretched_rows_keep_their_place_and_sum(heads):
    means = adaptive_pooling(torch.tensor(8), 2, 8, torch.float64).expand(*heads, 2, 8)
    wider = stretched(means, 32)
    assert wider.shape == (*heads, 2, 32)
    torch.testing.assert_close(wider.sum(-1), means.sum(-1))
    ends = wider[..., :12], wider[..., 20:]  # between them the first row fades out, the second in
    assert (ends[0][..., 0, :] == 1 / 16).all() and (ends[0][..., 1, :] == 0).all()
    assert (ends[1][..., 0, :] == 0).all() and (ends[1][..., 1, :] == 1 / 16).all()


def test_another_multiplier_leaves_the_matrix_as_it_is():
    source = trained(projection_multiplier=0.5)
    model, (new, _) = started(source, projection_multiplier=0.125)
    assert new == []
    assert_same_logits(model, source, tokens())
    attention = model.encoder.sentence_encoder.layers[0].self_attn
    assert attention.key_projection.multiplier == 0.125


def test_longformers_global_maps_start_as_copies():
    model, (new, left_out) = started(trained(**SOFTMAX), attention="longformer", longformer_window=8)
    assert new == left_out == []
    attention = model.encoder.sentence_encoder.layers[1].self_attn
    assert torch.equal(attention.k_proj_global.weight, attention.k_proj.weight)


@pytest.mark.parametrize(("sharing", "lost"), [("key-value", 2), ("layerwise", 3), ("headwise", 0)])
def test_matrices_that_the_model_shares_are_left_out_but_one(sharing, lost):
    """Also where the one is stretched."""
    source = trained(sharing="headwise")
    for length in (64, 128):
        _, (new, left_out) = started(source, sharing=sharing, max_positions=length)
        assert new == [] and [name.endswith("_projection.weight") for name in left_out] == [True] * lost
        assert not any("layers.0.self_attn.key" in name for name in left_out)
    layerwise = trained(sharing="layerwise")
    assert started(layerwise, sharing=sharing)[1] == ([], [])
