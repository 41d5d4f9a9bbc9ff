"""A trained model as the start of another: full attention becomes Linformer, or a model reads longer texts."""
