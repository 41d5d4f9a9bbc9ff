"""What may be typed after `linformer`: a module per verb has its help and its arguments.

It stands beside the package, whose import takes seconds: help, and a mistake in what was typed, do not wait for it.
`command` finds the verb and calls the module of that name in fairseq_linformer/cli, `arguments` has what several verbs
share, and `old_names` what was renamed.
"""
