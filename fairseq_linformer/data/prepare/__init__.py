"""Offline preparation: texts and tables into the binary datasets that fairseq reads."""
