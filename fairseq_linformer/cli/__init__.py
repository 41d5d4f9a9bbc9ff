"""The command `linformer VERB`: a module per verb, with its help as docstring, `add_arguments` and `run`.

Only `run` imports torch, fairseq and what needs them, so that --help and mistakes in what was typed take no seconds.
"""
