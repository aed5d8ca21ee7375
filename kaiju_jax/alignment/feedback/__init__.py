"""Training data from what people said of replies: `experiments.feedback`."""
