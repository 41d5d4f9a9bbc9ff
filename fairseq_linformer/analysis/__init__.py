"""What a trained model's attention does on real text, in pictures and numbers.

Symbols as under ``attention/``: n sequence length, k projected length, d embedding, h heads, d_h = d / h, m rows that
queries attend to, f near positions. R rows of text. Everything here looks at one row, one layer and one head at a time,
so that memory is a few matrices of n x n however large the model is.
"""
