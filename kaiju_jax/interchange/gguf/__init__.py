"""Reads a model in one GGUF file, the format of llama.cpp, as it lies on disk.

`folder.py` writes what such a file says beside its weights as the small files
of a Hugging Face folder, once per process, so that the readers of folders read
it. The weights stay where they are; `shards.py` reads them in blocks.
"""
