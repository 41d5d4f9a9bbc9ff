"""Offline preparation of texts and tables as the binary datasets that fairseq reads."""
