"""Fine-tuning: runs over seeds, prediction, metrics, results."""
