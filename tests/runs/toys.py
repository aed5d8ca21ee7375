"""Folders of other authors, with a tokenizer of 420 tokens."""

import json
import pathlib

from tests.interchange import family_folders
from tests.interchange.templates import shapes

SPECIAL = {'bos_token': '<s>', 'eos_token': '</s>'}


def write_folder(path, tensors=None, **fields) -> pathlib.Path:
  """Writes a Llama without a chat template."""
  known = family_folders.fields_of('llama') | {'vocab_size': 420}
  tensors = tensors or family_folders.tensors_of(known)
  family_folders.write(path, known | fields, tensors)
  (path / 'tokenizer.json').write_text(shapes.byte_tokenizer())
  return path


def add_chat(path, template='turns', **generation) -> pathlib.Path:
  """Adds a chat template, and settings of generation."""
  (path / 'chat_template.jinja').write_text(shapes.TEMPLATES[template])
  (path / 'tokenizer_config.json').write_text(json.dumps(SPECIAL))
  (path / 'generation_config.json').write_text(json.dumps(generation))
  return path
