"""Token stores: encoded text in a folder, made once and read by many runs.

    token_store.json        the settings; once it is whole, its shards and sums
    000000.safetensors …    `shards.py`: 16 million characters of text each
    .lock                   held by the process that writes

A store has the training and the held-out text of one fraction, so that each is
one array without gaps, and the rows made of it are those made of the text, bit
for bit. `write.py` makes a store; `corpora.py` reads it, or the text itself.
"""
