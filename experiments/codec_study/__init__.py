"""The study of gradient codecs behind `experiments.codecs`."""
