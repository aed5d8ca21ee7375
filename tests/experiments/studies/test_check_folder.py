"""A person's own check of a folder."""

import re

from kaiju_jax.experiments.studies import check_folder
from tests.interchange import family_folders
from tests.interchange.templates import shapes

TEXT = 'two rain the tea. ' * 20


def test_the_perplexity_of_each_form_that_can_be_served(tmp_path, monkeypatch):
  changes = {'vocab_size': 420, 'num_hidden_layers': 1}
  fields = family_folders.fields_of('qwen2') | changes
  folder = family_folders.write(tmp_path / 'folder', fields)
  (folder / 'tokenizer.json').write_text(shapes.byte_tokenizer())
  monkeypatch.setattr(check_folder, 'ROWS', 1)
  monkeypatch.setattr(check_folder, 'LENGTH', 24)
  # `make interchange` compares with the real one.
  monkeypatch.setattr(check_folder, 'parity', lambda *_: None)
  said = check_folder.check(folder, TEXT)
  assert '24 tokens: transformers is not installed' in said
  rows = re.findall(r'\| (\w+) \| (\w+) \| ([\d.]+) \| ([-+\d.]+)% \|', said)
  assert [one[:2] for one in rows] == [
    ('none', 'none'),
    ('none', 'int8'),
    ('weights', 'int8'),
    ('all', 'int8'),
  ]
  assert rows[0][3] == '+0.000' and len({one[2] for one in rows}) > 2
  assert all(1 < float(one[2]) < 1e4 for one in rows)
  assert 'Perplexity of 23 tokens.' in said
