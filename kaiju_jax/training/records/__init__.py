"""Records: write what a run measures, in metrics.jsonl and for trackers."""
