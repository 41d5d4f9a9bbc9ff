"""The command `linformer VERB`: a module per verb, with its help as docstring, `add_arguments` and `run`.

Only `run` imports torch and fairseq, so that --help and errors in arguments are fast.
"""
