"""What is said of numbers whose answer is known."""

import numpy as np

from fairseq_linformer.analysis.findings import describe_looks, describe_loss, describe_rank
from fairseq_linformer.analysis.low_rank import OWN


def spectrum(chosen=None):
    ranks = {"0.9": [[20, 30], [8, 12]], "0.99": [[99, 101], [60, 62]]}
    return {"n": 512, "projected_length": chosen, "effective_rank": ranks}


def test_rank():
    said = "Rank: of the sum of attention's 512 singular values, 90 % need 10 to 25 and 99 % need 61 to 100 values"
    assert describe_rank(spectrum()) == said + " (mean over heads, fewest in layer 1)."
    assert describe_rank(spectrum([128, 64])).endswith(" in layer 1); the model has k = 64 to 128.")
    assert describe_rank(spectrum([64, 64])).endswith("; the model has k = 64.")
    alike = {**spectrum(), "effective_rank": {"0.9": [[5], [5]]}}
    assert describe_rank(alike).endswith("singular values, 90 % need 5 values (mean over heads, in all layers alike).")


def layer(means, gaussian, own=None):
    """Of errors by k."""
    kinds = {"segment means": means, "Gaussian": gaussian} | ({OWN: own} if own else {})
    return {"linformer": {kind: [{"k": k, "median": error} for k, error in of.items()] for kind, of in kinds.items()}}


def test_loss_is_that_at_the_k_of_the_layer():
    """At n / 4 where it has none; of other k the errors do not count."""
    layers = [layer({64: 0.1, 128: 0.5}, {64: 3, 128: 0.7}), layer({64: 0.2, 128: 0.625}, {64: 3, 128: 0.7})]
    assert describe_loss({"layers": layers}, spectrum()) == (
        "Loss: smallest with segment means of k = 128 in every layer (50 % to 62 %); "
        "this is the error of P w, median over columns w."
    )
    assert "of k = 64 in every layer (10 % to 20 %)" in describe_loss({"layers": layers}, spectrum([60, 64]))


def test_loss_names_the_layers_of_each_projection():
    layers = [
        layer({64: 0.5}, {64: error}, own={60: own}) for error, own in ((1, 0.6), (1, 0.25), (0.031, 0.6), (1, 2))
    ]
    assert describe_loss({"layers": layers}, spectrum([60] * 4)) == (
        "Loss: smallest with segment means of k = 64 in layers 0 and 3 (50 %), with its own E and F of k = 60 in layer "
        "1 (25 %), with Gaussian matrices of k = 64 in layer 2 (3.1 %); "
        "this is the error of P w, median over columns w."
    )
    assert describe_loss(None, spectrum([4])).startswith("Loss: this attention does not approximate softmax attention")


def looks(maps, beyond, length):
    tokens = ["<s>", *(f" t{number}" for number in range(1, maps.shape[-1]))]
    return {"tokens": tokens, "length": length, "models": [{"maps": maps.tolist(), "beyond": beyond.tolist()}]}


def test_looks():
    """Layer 0 is even; layer 1 has 3 / 4 of its weight on the token itself, and the rest on the last one."""
    maps = np.zeros((2, 2, 10, 10))
    maps[0], maps[1] = 5, 60 * np.eye(10)
    maps[1, :, :, -1] += 20
    assert describe_looks(looks(maps, np.zeros((2, 2, 10)), 10)) == (
        "Looks: 88 % of a token's attention in layer 1 goes to positions up to 4 away, 70 % in layer 0 "
        "(70 % if it were even); most is on 't9' at position 9 in layer 1, 32 %."
    )


def test_what_is_not_shown_counts():
    """Half of the weight is beyond the shown tokens, and only those count whose neighbours are shown: the first two."""
    maps = np.full((1, 1, 6, 6), 10)
    maps[0, 0, 0, 0] = -10
    said = describe_looks(looks(maps, np.full((1, 1, 6), 60), 12))
    # 40 of 110 for the first one, which takes nothing of itself, and 60 of 120 for the second; evenly 5 and 6 of 12
    assert said.startswith(f"Looks: {100 * (40 / 110 + 60 / 120) / 2:.0f} % of a token's attention in layer 0")
    assert "(46 % if it were even)" in said
