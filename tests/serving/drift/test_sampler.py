"""Sampled codes are those of the forward pass, of layer and token."""

import jax
import numpy as np
import pytest

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import page_copies
from kaiju_jax.decoding.pages import prefix_tree
from kaiju_jax.evaluation.gate import reader
from kaiju_jax.serving.drift import calibration
from kaiju_jax.serving.drift import watch
from tests.decoding import toys

CONFIG = toys.config(
  quantization=toys.int8(kv_scale='channel'),
  layout='L0 G1 L2 L2',
  max_length=256,
)
LAYERS, LENGTH, PAGE = 3, 64, 4


def limits_of(seed=0):
  rng = np.random.default_rng(seed)
  return rng.uniform(0.5, 3, (LAYERS, 2, CONFIG.head_dim)).astype(np.float32)


def params_of(limits):
  return calibration.write_limits(toys.drawn(CONFIG), CONFIG, limits)


@pytest.fixture(scope='module')
def decoder():
  return make()


def make():
  return decoder_lib.Decoder(
    params_of(limits_of()),
    CONFIG,
    rows=2,
    length=LENGTH,
    page=PAGE,
    page_counts={'local': 60, 'global': 60},
  )


@pytest.fixture
def sampler(decoder):
  decoder.account.tree.clear()
  copies = page_copies.PageCopies(decoder, batch=2)
  return watch.Sampler(decoder, copies)


def record(decoder, tokens_L, salt=b'mira'):
  """Runs a text, and makes a point of it."""
  text = prefix_tree.Text(tokens_L, cache_salt=salt)
  row = decoder.open(len(tokens_L))
  decoder.extend_text([row], tokens_L[None])
  point = decoder.record(row, text)
  decoder.close(row)
  return point


def test_limits_are_read_where_they_were_written(sampler):
  np.testing.assert_array_equal(sampler.limits, limits_of())
  params = params_of(limits_of(3))
  found = calibration.read_limits(params, CONFIG)
  np.testing.assert_array_equal(found, limits_of(3))
  leaves, drawn = map(jax.tree.leaves, (params, toys.drawn(CONFIG)))
  moved = sum(not np.array_equal(*pair) for pair in zip(leaves, drawn))
  assert moved == 2 * LAYERS


def test_codes_are_those_of_the_forward_pass(decoder, sampler):
  texts = toys.tokens(CONFIG, 3, 22)
  salts = [b'mira', b'nell', b'']
  for tokens_L, salt in zip(texts, salts):
    record(decoder, tokens_L, salt)
  found = sampler.take(8).read()
  assert sorted(x.character for x in found) == sorted(salts)
  read = reader.Reader(decoder, 22)
  for one in found:
    tokens_L = texts[salts.index(one.character)]
    # The last full page.
    np.testing.assert_array_equal(one.tokens_S, tokens_L[16:20])
    stored = read.read(tokens_L).stored
    assert one.codes.shape == (LAYERS, 2, PAGE, CONFIG.head_dim)
    assert len({*one.codes.ravel().tolist()}) > 60
    for place, layer in enumerate(sorted(stored)):
      for side in range(2):
        codes = np.asarray(stored[layer][side].codes)[0, 16:20]
        expected = np.abs(codes.astype(int))
        # The pass and the cache may round a sum to neighbouring codes.
        assert np.abs(one.codes[place, side] - expected).max() <= 1
        assert (one.codes[place, side] == expected).mean() > 0.98


def test_only_new_points_are_taken_and_each_page_once(decoder, sampler):
  assert sampler.take(8) is None
  texts = toys.tokens(CONFIG, 2, 22)
  record(decoder, texts[0])
  record(decoder, texts[0][:21])  # The same last full page.
  assert len(sampler.take(8).pages) == 1
  assert sampler.take(8) is None
  record(decoder, texts[1])
  (one,) = sampler.take(8).read()
  np.testing.assert_array_equal(one.tokens_S, texts[1][16:20])


def test_no_more_pages_than_wanted_and_different_ones(decoder, sampler):
  texts = toys.tokens(CONFIG, 4, 22)
  for tokens_L in texts:
    record(decoder, tokens_L)
  found = sampler.take(3).read()
  assert len(found) == 3
  assert len({one.tokens_S.tobytes() for one in found}) == 3


def test_a_text_without_a_full_page_gives_none(decoder, sampler):
  record(decoder, toys.tokens(CONFIG, 1, PAGE - 1)[0])
  assert sampler.take(8) is None


def test_a_sample_survives_what_the_engine_does_next(decoder, sampler):
  texts = toys.tokens(CONFIG, 1, 22)
  record(decoder, texts[0])
  taken = sampler.take(8)
  decoder.account.tree.clear()
  for tokens_L in toys.tokens(CONFIG, 12, 22):  # On all pages.
    record(decoder, tokens_L[::-1].copy())
  (one,) = taken.read()
  fresh = make()
  made = watch.Sampler(fresh, page_copies.PageCopies(fresh, 2))
  record(fresh, texts[0])
  (expected,) = made.take(8).read()
  np.testing.assert_array_equal(one.codes, expected.codes)


def test_a_scale_per_token_is_refused():
  config = toys.config(quantization=toys.int8())
  with pytest.raises(ValueError, match="kv_scale='token': must be 'int8' and"):
    calibration.read_limits(toys.drawn(config), config)


def test_new_limits_are_a_new_model_and_need_idle_rows(decoder, sampler):
  """Replaced limits drop all points, change codes, and end the sampling."""
  tokens_L = toys.tokens(CONFIG, 1, 22)[0]
  record(decoder, tokens_L)
  row = decoder.open(8)
  with pytest.raises(ValueError, match=r'rows \[\d\] are open'):
    decoder.replace(params_of(2 * limits_of()))
  decoder.close(row)
  (before,) = sampler.take(8).read()
  decoder.replace(params_of(2 * limits_of()))
  try:
    assert not len(decoder.account.tree)
    with pytest.raises(ValueError, match='was replaced'):
      sampler.take(8)
    copies = page_copies.PageCopies(decoder, batch=2)
    again = watch.Sampler(decoder, copies)
    record(decoder, tokens_L)
    (after,) = again.take(8).read()
    # Layer 0 has the very values; later ones read other codes.
    old, new = before.codes[0].astype(int), after.codes[0].astype(int)
    assert np.abs(2 * new - old)[old < 127].max() <= 2
    assert (old[old < 127] > 60).any() and (new[old == 127] >= 63).all()
  finally:
    decoder.replace(params_of(limits_of()))
