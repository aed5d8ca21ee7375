"""What a training step minimizes: one file per objective."""
