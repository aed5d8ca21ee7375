"""Prepares text for training.

similarity  embeds texts without a model
mixing      finds the weights of sources whose mix resembles a target
mixes       weighs the sources that flags name, and writes mix.json
selection   chooses documents within a source
duplicates  finds near-duplicates, and writes the documents without them
leaks       finds evaluation items that training text contains
collections reads and writes collections of documents

What takes long shows its progress by a `similarity.Track`.
"""
