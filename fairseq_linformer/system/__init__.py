"""Files, processes and messages: whatever does not depend on models."""
