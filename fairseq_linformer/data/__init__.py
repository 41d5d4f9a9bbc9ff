"""Prepared folders: their vocabulary, their content, and the datasets that training reads. `prepare` writes them."""
