"""What the verbs of `linformer` do, a module each: `run` is called with what linformer_cli has parsed."""
