"""Prepared folders: their vocabulary, what they hold, and how training reads them. `prepare` makes them."""
