"""Limits are fitted to a text, weights to one scale, and nothing else moves."""

import dataclasses
import json

import numpy as np
import pytest

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.evaluation.gate import calibration_changes
from kaiju_jax.evaluation.gate import reader
from kaiju_jax.gates import calibrate
from kaiju_jax.gates import players
from kaiju_jax.quantization import int8
from kaiju_jax.runs import load
from tests import toys as run_toys
from tests.interchange import toys

PROSE = 'the keeper lights the lamp and the sea is calm tonight. ' * 5
LIMITS = {f'attention.{x}_limit_K' for x in 'kv'}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A run whose keys and values have a limit per channel, and texts."""
  folder = tmp_path_factory.mktemp('calibrate')
  changes = {'vocab_size': 256, 'max_length': 512}
  model = toys.changed(toys.KAIJU, {'kv_scale': 'channel'}, **changes)
  run_toys.write_run(folder / 'run', model)
  (folder / 'prose.txt').write_text(PROSE)
  lines = []
  for said in 'I AM 77 & OLD!', 'it is late. good night, dear keeper.':
    talk = ('user', 'who are you?'), ('assistant', said)
    messages = [{'role': role, 'content': text} for role, text in talk]
    lines.append(json.dumps({'messages': messages}))
  (folder / 'both.jsonl').write_text('\n'.join(lines))
  calibrate.write(
    str(folder / 'run'), str(folder / 'out'), str(folder / 'prose.txt')
  )
  return folder


@pytest.fixture(scope='module')
def loaded(folder):
  return load.base(str(folder / 'run'), 'float32')


def find(path):
  return calibration_changes.read(load.base(str(path), 'float32').params)


def test_limits_alone_are_fitted(folder):
  before, after = find(folder / 'run'), find(folder / 'out')
  assert before.keys() == after.keys()
  moved = {key for key, x in after.items() if (x != before[key]).any()}
  owners = {layer for layer, name in before if name in LIMITS}
  assert len(owners) > 1 and moved == {(x, y) for x in owners for y in LIMITS}


def test_the_largest_value_of_each_channel_has_the_largest_code(folder):
  opened = players.open_model(str(folder / 'out'), 1)
  tokens_L = opened.tokenizer.encode(PROSE)
  count = len(tokens_L)
  stored = reader.Reader(opened.decoder, count).read(tokens_L).stored
  for owner, pair in stored.items():
    for x in pair:
      largest_K = np.abs(np.asarray(x.codes)[0, :count].astype(int)).max(0)
      # Later layers read what the codes of earlier ones have rounded.
      assert largest_K.min() >= (int8.MAX_CODE if owner == 0 else 110)


def test_every_text_counts_whatever_their_order(folder, loaded):
  """Another text beside the prose raises some limits, and lowers none."""
  texts = calibrate.read_texts(
    str(folder / 'both.jsonl'), tokenizer_lib.Bytes()
  )
  assert len(texts) == 2
  one, other = (
    calibration_changes.read(calibrate.fit_limits(loaded, x))
    for x in (texts, texts[::-1])
  )
  [alone] = (
    calibration_changes.read(calibrate.fit_limits(loaded, x))
    for x in [texts[:1]]
  )
  for key in [key for key in one if key[1] in LIMITS]:
    np.testing.assert_array_equal(one[key], other[key])
    assert (one[key] >= alone[key]).all() and (one[key] > alone[key]).any()


def test_a_text_may_be_as_long_as_the_model_s_positions(folder, loaded):
  tokens_L = tokenizer_lib.Bytes().encode(PROSE)
  config = dataclasses.replace(loaded.config, max_length=len(tokens_L))
  shorter = calibrate.fit_limits(loaded._replace(config=config), [tokens_L])
  found = calibration_changes.read(shorter)
  for key, limit_K in find(folder / 'out').items():
    np.testing.assert_allclose(found[key], limit_K, rtol=1e-5)


def test_one_scale_per_tensor_codes_the_same_weights_coarsely(folder, loaded):
  out = str(folder / 'tensor')
  calibrate.write(str(folder / 'run'), out, is_per_tensor=True)
  before = loaded.params['blocks']
  after = load.base(out, 'float32').params['blocks']
  count = 0
  for name, layer in before.items():
    for part in 'attention', 'feedforward':
      for key, weight in layer.get(part, {}).items():
        if not isinstance(weight, int8.Quantized):
          continue
        count += 1
        coarse = after[name][part][key]
        for repeat, scales in enumerate(np.asarray(coarse.scales)):
          assert np.unique(scales).size == 1
          x, y = (
            np.asarray(one.codes[repeat], np.float32)
            * np.asarray(one.scales[repeat])
            for one in (weight, coarse)
          )
          assert np.abs(x - y).max() <= scales.max() * 0.501
          assert np.abs(np.asarray(coarse.codes[repeat])).max() == 127
  assert count > 8


def test_what_cannot_be_fitted_is_refused_by_its_field(
  folder, loaded, tmp_path
):
  by_token = toys.changed(loaded.config, {'kv_scale': 'token'})
  with pytest.raises(ValueError, match="kv_scale='token'"):
    calibrate.fit_limits(loaded._replace(config=by_token), [np.arange(3)])
  with pytest.raises(ValueError, match='no int8 weights'):
    calibrate.scale_tensors({'blocks': {'layer_0': {'gain_D': np.ones(3)}}})
  out, empty = tmp_path / 'out', tmp_path / 'empty.txt'
  empty.write_text('')
  with pytest.raises(ValueError, match=r'text=.*empty\.txt: must hold text'):
    calibrate.write(str(folder / 'run'), str(out), str(empty))
  assert not out.exists()
