"""A person's own check of a folder."""

import numpy as np
import pytest

from kaiju_jax import visibility
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.evaluation.gate import divergence
from kaiju_jax.experiments.studies import check_folder
from kaiju_jax.interchange import hugging_face
from kaiju_jax.interchange import stream
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from tests.interchange import family_folders
from tests.interchange.templates import shapes

TEXT = 'two rain the tea. ' * 20


@pytest.fixture
def folder(tmp_path, monkeypatch):
  changes = {'vocab_size': 420, 'num_hidden_layers': 1}
  fields = family_folders.fields_of('qwen2') | changes
  folder = family_folders.write(tmp_path / 'folder', fields)
  (folder / 'tokenizer.json').write_text(shapes.byte_tokenizer())
  monkeypatch.setattr(check_folder, 'LENGTH', 24)
  # `make interchange` compares with the real one.
  monkeypatch.setattr(check_folder, 'parity', lambda *_: None)
  return folder


def test_what_each_form_that_can_be_served_costs(folder):
  said = check_folder.check(folder, TEXT, tokens=40)
  assert '24 tokens: transformers is not installed' in said
  # Rows of 24 and of 16 tokens, the first of which none predicts.
  assert 'Perplexity of 38 tokens in rows of 24' in said
  rows = [
    [cell.strip() for cell in line.split('|')[1:-1]]
    for line in said.splitlines()
    if line.startswith(('| none', '| weights', '| all'))
  ]
  assert [tuple(one[:2]) for one in rows] == [
    (arm, kv) for arm in ('none', 'weights', 'all') for kv in ('none', 'int8')
  ]
  assert rows[0][3:] == ['+0.000%', '+0.00% to +0.00%', '0.00000', '100.00%']
  for _, _, perplexity, rise, _, kl, same in rows[1:]:
    assert float(perplexity) > 1 and float(kl) > 0
    assert 50 < float(same.rstrip('%')) <= 100
    ratio = float(perplexity) / float(rows[0][2]) - 1
    assert abs(float(rise.rstrip('%')) / 100 - ratio) < 2e-4
  # Int8 activations diverge more than int8 weights alone.
  assert float(rows[4][5]) > float(rows[2][5])


def test_one_row_has_no_interval(folder, monkeypatch):
  monkeypatch.setattr(check_folder, 'FORMS', (('none', 'none'),))
  said = check_folder.check(folder, TEXT, tokens=20)
  assert '| +0.000% | none of one row |' in said


def test_differences_are_those_of_whole_passes(folder, monkeypatch):
  forms = ('none', 'none'), ('weights', 'none')
  monkeypatch.setattr(check_folder, 'FORMS', forms)
  arm = quantization_config.for_serving('weights', 'none')
  tokenizer = tokenizer_lib.load(str(folder / 'tokenizer.json'), 420)
  rows = [tokenizer.encode(TEXT)[:24], tokenizer.encode(TEXT)[24:31]]
  found = check_folder.compare(folder, tokenizer, rows)
  for row, floats, one in zip(rows, *found):
    logits = []
    for form, given in ((stream.MASTERS, None), (stream.DEPLOYED, arm)):
      params, config = hugging_face.read(
        folder, (), form, given, 'float32', rotated=given is not None
      )
      model = transformer.Transformer(config)
      seen = visibility.causal(len(row))
      all_1LV = model.apply({'params': params}, row[None], seen)
      # No token beyond the tokenizer's is drawn.
      logits.append([np.asarray(all_1LV[0, :, : tokenizer.vocab_size])])
    want = divergence.compare(*logits, row)
    np.testing.assert_array_equal(floats.kl_L, 0)
    np.testing.assert_allclose(one.kl_L, want.kl_L, atol=1e-5)
    np.testing.assert_allclose(
      one.candidate_loss_L, want.candidate_loss_L, atol=1e-4
    )
