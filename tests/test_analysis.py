"""Analysis of attention: numbers compared with naive computations in float64, and the files of the command."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from torch.nn.functional import pad

from fairseq_linformer.analysis import (
    BEST,
    MODEL,
    SEGMENT_MEANS,
    analyze,
    attention_matrices,
    attentions_of,
    heat_map_index,
    map_attention,
    measure,
    ranks_to_try,
    read_blocks,
    read_first_line,
    read_model,
)
from fairseq_linformer.cli.analyze import run as run_verb
from fairseq_linformer.cli.command import main
from fairseq_linformer.digests import digest_file
from fairseq_linformer.errors import UserError
from tests.helpers.exports import write_fine_tuned, write_pretrained
from tests.helpers.inputs import sentences
from tests.helpers.layers import D, N, build, leaving_heads
from tests.helpers.models import small, tokens

PICTURES = ["attention_maps.png", "low_rank.png", "spectrum.png", "spectrum_heat.png"]

LINFORMER = {"name": "linformer"}
SHARED = {**LINFORMER, "sharing": "key-value"}
MECHANISMS = [
    *({"name": "softmax", "positions": positions} for positions in ("learned", "rotary", "alibi")),
    *({**LINFORMER, "sharing": sharing} for sharing in ("none", "headwise", "layerwise")),
    {**LINFORMER, "projection": "random", "multiplier": 0.25},
    *({**SHARED, "projection": projection} for projection in ("attention-pool", "split-pool")),
    {**SHARED, "linformer_window": 1, "projection": "split-pool"},
    {**LINFORMER, "linformer_window": 100, "sharing": "none"},
    {**SHARED, "projection": "mean-pool", "linformer_window": 2, "linformer_block": 3, "linformer_sinks": 1},
    {**LINFORMER, "linformer_window": 4, "linformer_class_token": True},
    {**SHARED, "adaptive": True, "projection": "attention-pool", "linformer_window": 3},
    {"name": "revisited-linformer", "projection": "mean-pool", "sharing": "key-value"},
    {"name": "longformer", "longformer_window": 4, "longformer_global_tokens": 0},
    {"name": "performer", "performer_features": 10},
]


@pytest.mark.parametrize("length", [N, 7, 1])
@pytest.mark.parametrize("options", MECHANISMS, ids=lambda options: "-".join(map(str, options.values())))
@torch.no_grad()
def test_matrix_times_values_is_the_output(options, length):
    attention = build(**options)[0].double().eval()
    x = torch.randn((1, length, D), dtype=torch.double)
    state = {name: value.clone() for name, value in attention.state_dict().items()}
    matrices = attention_matrices(attention, x)
    bias = attention.v_proj.bias.view(attention.num_heads, 1, attention.head_dim)  # added after F
    values = attention.split_heads(attention.v_proj(x))[0] - bias
    heads = (matrices @ values + bias).transpose(0, 1).flatten(1)
    torch.testing.assert_close(attention.out_proj(heads), attention(x)[0], rtol=1e-10, atol=1e-10)
    assert all(torch.equal(value, state[name]) for name, value in attention.state_dict().items())


@torch.no_grad()
def test_heads_that_are_not_linear_in_their_values_are_rejected():
    with pytest.raises(UserError, match="attention=linformer "):
        attention_matrices(build(**SHARED, projection="max-pool")[0].eval(), torch.randn(1, N, D))


def test_measured_ranks():
    assert [heat_map_index(n, []) for n in (4096, 512, 128, 3)] == [128, 128, 32, 1]
    assert [heat_map_index(512, lengths) for lengths in ([256, 512], [128, 64], [1])] == [128, 32, 1]
    assert ranks_to_try(512) == [16, 32, 64, 128, 256] and ranks_to_try(100, 40) == [16, 32, 40]
    assert ranks_to_try(20, 25) == [10] and ranks_to_try(1) == [1]


def model_of(**options):
    """An encoder in float64 with attention that is far from uniform."""
    encoder = small(max_positions=64, **options).double().eval().encoder.sentence_encoder
    for attention in attentions_of(encoder):
        torch.nn.init.normal_(attention.q_proj.weight, std=0.4)
        torch.nn.init.normal_(attention.k_proj.weight, std=0.4)
        torch.nn.init.normal_(attention.v_proj.bias, std=0.4)
    return encoder


def naive_heads(encoder, ids, layer):
    """Queries, keys, values (h, n, d_h), softmax attention (h, n, n) and the layer's input, from its definition."""
    with torch.no_grad():
        states = encoder(ids.unsqueeze(0), keep_states=True)[1]
    attention = encoder.layers[layer].self_attn
    x = states[layer]
    values = attention.v_proj(x)
    first = None
    if attention.value_mix is not None:
        first = encoder.layers[0].self_attn.v_proj(states[0])
        values = attention.value_mix[0] * values + attention.value_mix[1] * first
    parts = (attention.q_proj(x), attention.k_proj(x), values)
    queries, keys, values = (
        part[0].detach().numpy().reshape(len(ids), attention.num_heads, -1).swapaxes(0, 1) for part in parts
    )
    return queries, keys, values, softmax(queries, keys), (x, first)


def softmax(queries, keys):
    weights = np.exp(queries @ keys.swapaxes(1, 2) / queries.shape[2] ** 0.5)
    return weights / weights.sum(2, keepdims=True)


def quantiles(approximation, exact):
    """Relative errors of the columns of all heads: 5 %, median, 95 %."""
    errors = np.linalg.norm(approximation - exact, axis=1) / np.linalg.norm(exact, axis=1)
    return np.quantile(errors, [0.05, 0.5, 0.95])


def numbers(point):
    return [point[name] for name in ("p5", "median", "p95")]


@pytest.mark.parametrize("options", [{"attention": "softmax"}, {"linformer_window": 8, "value_residual": True}])
def test_measured_numbers_are_those_of_numpy(options):
    """In the second layer, whose values include those of the first layer with a value residual."""
    encoder, ids = model_of(**options), tokens(1)[0]
    is_softmax = options.get("attention") == "softmax"
    queries, keys, values, weights, (x, first) = naive_heads(encoder, ids, 1)
    measured = measure(encoder, ids[None], [] if is_softmax else [8, 8])
    attention = encoder.layers[1].self_attn
    with torch.no_grad():
        matrices = weights if is_softmax else attention_matrices(attention, x).numpy()
        outputs = leaving_heads(attention, x, first)[0].numpy()

    sizes = np.linalg.svd(matrices, compute_uv=False)
    curves = sizes.cumsum(1) / sizes.sum(1, keepdims=True)
    np.testing.assert_allclose(measured["spectrum"]["cumulative"][1], curves, atol=1e-6)
    index = measured["spectrum"]["heat_map_index"]
    assert index == (16 if is_softmax else 4)
    np.testing.assert_allclose(measured["spectrum"]["heat_map"][1], curves[:, index - 1], atol=1e-9)
    assert measured["spectrum"]["effective_rank"]["0.9"][1] == [int(np.argmax(curve >= 0.9)) + 1 for curve in curves]

    errors, exact = measured["low_rank"][1], weights @ values
    left, sizes, right = np.linalg.svd(weights)
    assert [point["rank"] for point in errors[BEST]] == ([16, 32] if is_softmax else [8, 16, 32])
    for best, means in zip(errors[BEST], errors[SEGMENT_MEANS], strict=True):
        k = best["rank"]
        truncated = (left[:, :, :k] * sizes[:, None, :k]) @ right[:, :k] @ values
        np.testing.assert_allclose(numbers(best), quantiles(truncated, exact), rtol=1e-6)
        averages = [part.reshape(3, k, 64 // k, -1).mean(2) for part in (keys, values)]
        projected = softmax(queries, averages[0]) @ averages[1]
        np.testing.assert_allclose(numbers(means), quantiles(projected, exact), rtol=1e-9)
    if not is_softmax:
        (model,) = errors[MODEL]
        np.testing.assert_allclose(numbers(model), quantiles(outputs, exact), rtol=1e-9)
    assert (MODEL in errors) == (not is_softmax)


def test_blocks_are_averaged_and_padding_changes_nothing():
    encoder, blocks = model_of(sharing="headwise"), tokens(3, 41)
    measured, alone = measure(encoder, blocks, [8, 8]), [measure(encoder, block[None], [8, 8]) for block in blocks]
    curves = np.mean([one["spectrum"]["cumulative"] for one in alone], axis=0)
    np.testing.assert_allclose(measured["spectrum"]["cumulative"], curves, atol=2e-6)
    padded = pad(blocks, (0, 9), value=1)
    np.testing.assert_allclose(measure(encoder, padded, [8, 8])["spectrum"]["cumulative"], curves, atol=2e-6)
    maps = [map_attention(encoder, ids[0], 12) for ids in (blocks, padded)]
    np.testing.assert_allclose(*maps, atol=1e-9)


@pytest.mark.parametrize("positions", ["learned", "alibi"])
def test_heads_of_one_feature_and_relative_positions(positions):
    """Rotary and ALiBi positions have no Linformer to compare with."""
    encoder = model_of(attention="softmax", positions=positions, encoder_embed_dim=4, encoder_attention_heads=4)
    for layer in measure(encoder, tokens(1))["low_rank"]:
        assert np.isfinite([numbers(point) for point in layer[BEST]]).all()
        assert [*layer] == ([BEST, SEGMENT_MEANS] if positions == "learned" else [BEST])


@pytest.fixture
def text(vocabulary, tmp_path):
    (tmp_path / "text.txt").write_text(sentences(60, seed=5))
    return tmp_path / "text.txt"


def test_command(vocabulary, text, tmp_path, monkeypatch, capsys):
    """It compiles no layers, as training may, and does not write into an existing folder."""
    monkeypatch.chdir(tmp_path)
    options = {"projected_length": "3,5", "sharing": "none", "linformer_window": "0,4", "compile_layers": True}
    checkpoint = write_pretrained(tmp_path / "run", vocabulary, **options)
    assert read_model(checkpoint).encoder.layers[0]._compiled_call_impl is None
    command = ["analyze", "run", "--input", str(text), "--out", "out", "--rows", "2", "--tokens", "5"]
    main(command)
    assert capsys.readouterr().out == f"out: analysis.json, {', '.join(PICTURES)}\n"
    assert all((tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG") for name in PICTURES)
    results = json.loads((tmp_path / "out" / "analysis.json").read_text())
    assert results["model"]["sha256"] == digest_file(checkpoint) and results["model"]["projected_length"] == [3, 5]
    assert results["text"] == {"sha256": digest_file(text), "blocks": 2, "tokens": N}
    assert np.shape(results["spectrum"]["cumulative"]) == (2, 3, N)
    assert np.shape(results["maps"]["weights"]) == (2, 3, 5, 5) and results["maps"]["tokens"][0] == "<s>"
    with pytest.raises(SystemExit, match="out exists"):
        main(command)


def test_fine_tuned_model_maps_the_first_line(vocabulary, text, tmp_path):
    """Truncated as in its task; the vocabulary may be a file of sentencepiece."""
    pieces = shutil.copy(vocabulary / "sentencepiece.bpe.model", tmp_path / "spm.model")
    task = {"options": {"projected_length": 5}, "truncation": "tail", "truncate_to": 5}
    checkpoint = write_fine_tuned(tmp_path / "run", vocabulary, "single-label", **task)
    analyze(checkpoint, text, tmp_path / "out", 1, N, pieces)
    labels = json.loads((tmp_path / "out" / "analysis.json").read_text())["maps"]["tokens"]
    assert (labels[0], labels[-1], len(labels)) == ("<s>", "</s>", 5)
    assert text.read_text().splitlines()[0].replace(" ", "").endswith("".join(labels[1:-1]).replace("␣", ""))
    whole = write_fine_tuned(tmp_path / "whole", vocabulary, "single-label", max_positions=None)
    assert len(read_first_line(text, read_model(whole))) == N


@pytest.mark.slow
def test_folder_of_transformers(vocabulary, text, tmp_path):
    from fairseq_linformer.hf.exporting import export

    checkpoint = write_pretrained(tmp_path / "run", vocabulary, attention="softmax")
    export(checkpoint, tmp_path / "hf")
    models = [read_model(source) for source in (checkpoint, tmp_path / "hf")]
    first, second = (measure(model.encoder, read_blocks(text, model.tokenizer, N, 1)) for model in models)
    assert first == second


def test_a_model_without_attention_a_missing_text_and_matplotlib_are_named(vocabulary, text, tmp_path, monkeypatch):
    checkpoint = write_pretrained(tmp_path / "run", vocabulary, attention="none", attention_dropout=0.0)
    with pytest.raises(UserError, match="attention=none"):
        read_model(checkpoint)
    with pytest.raises(FileNotFoundError, match="missing"):
        analyze(checkpoint, tmp_path / "missing.txt", tmp_path / "out", 1, 4)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match="analysis"):
        run_verb(checkpoint, text, tmp_path / "out", None, 1, 4)
    assert not (tmp_path / "out").exists()
