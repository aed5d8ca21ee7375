"""Decoding through a cache says what the forward pass says; what is counted."""

import dataclasses
import functools

import numpy as np
import pytest

from kaiju_jax.decoding.device import decoder
from kaiju_jax.evaluation import answers
from kaiju_jax.evaluation import cached_answers
from kaiju_jax.experiments.studies import agreement
from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.tasks import registry as tasks
from kaiju_jax.tasks.needle import questions as needle
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import state

LENGTH = 24


def config(is_int8: bool = False) -> model_config.ModelConfig:
  return model_config.ModelConfig(
    d_model=32, num_layers=2, num_heads=2, head_dim=16, d_ff=32, period=2,
    window=5, max_length=LENGTH, dtype='float32',
    quantization=(
      quantization_config.QuantizationConfig()
      if is_int8
      else quantization_config.none()
    ),
  )  # fmt: skip


@functools.cache
def params():
  """A fresh model whose global layer drowns all else: it looks back."""
  drawn = state.init_params(transformer.Transformer(config()), 0)
  attention = drawn['blocks']['layer_1']['attention']
  attention['w_o_DHK'] = 100 * attention['w_o_DHK']
  return drawn


@functools.cache
def made() -> decoder.Decoder:
  return decoder.Decoder(params(), config(), rows=2, length=LENGTH, page=8)


@functools.cache
def forward():
  """The forward pass's answers; of three rows and A = 3, compiled once."""
  predict = answers.predictor(transformer.Transformer(config()))
  read = answers.reader(predict, params(), {LENGTH}, tokens=3 * LENGTH)
  return lambda tokens_BL, count: read(tokens_BL, 3)[:, 3 - count :]


@pytest.mark.slow
def test_answers_through_the_cache_are_those_of_the_forward_pass():
  read = cached_answers.reader(made(), chunk=8)
  pairs = []

  def both(tokens_BL, count):
    pairs.append((forward()(tokens_BL, count), read(tokens_BL, count)))
    return pairs[-1][1]

  # Seven questions in parts of two rows: a last part of one.
  cells = [
    needle.Cell(LENGTH, 0.0, distance, 1, count)
    for distance, count in ((3, 4), (LENGTH - 3, 3))
  ]
  for _ in needle.ask(both, needle.Pairs(), cells, [0]):
    pass
  ((expected_BA, found_BA),) = pairs
  assert found_BA.shape == (7, 1)
  np.testing.assert_array_equal(found_BA, expected_BA)
  assert len(np.unique(found_BA)) > 3


@pytest.mark.slow
def test_an_answer_is_decoded_and_not_read_from_the_row():
  rng = np.random.default_rng(0)
  tokens_BL = rng.integers(0, 256, (3, LENGTH), np.int32)
  row_BL = tokens_BL.copy()
  for step in range(3):
    written_B = forward()(row_BL, 3)[:, step]
    if step < 2:
      row_BL[:, LENGTH - 2 + step] = written_B
  read = cached_answers.reader(made(), chunk=8)
  found_BA = read(tokens_BL, 3)
  np.testing.assert_array_equal(found_BA[:, :2], row_BL[:, -2:])
  np.testing.assert_array_equal(found_BA[:, 2], written_B)
  assert (row_BL[:, -2:] != tokens_BL[:, -2:]).any()


def test_rows_are_closed_where_a_call_fails():
  with pytest.raises(ValueError, match='a token is 0…255'):
    cached_answers.reader(made(), 8)(np.full((1, LENGTH), 999, np.int32), 1)
  for row in [made().open() for _ in range(2)]:
    made().close(row)


@pytest.mark.slow
@pytest.mark.parametrize(('tensor', 'heads'), [(1, 1), (2, 1), (2, 2)])
def test_an_int8_model_agrees_with_itself_through_the_cache(tensor, heads):
  rng = np.random.default_rng(0)
  several = dataclasses.replace(config(is_int8=True), num_kv_heads=heads)
  drawn = state.init_params(transformer.Transformer(several), 0)
  found = agreement.compare(
    drawn if heads > 1 else params(),
    several,
    rng.integers(0, 256, (2, LENGTH), np.int32),
    prompt=13,
    chunk=8,
    page=8,
    tensor=tensor,
  )
  assert found.tokens == 2 * (LENGTH - 1)
  assert found.loss > np.log(256) - 1
  assert found.loss_difference < 1e-3
  assert found.greedy_margin <= found.largest_difference
  # Layers 0 and 1 each have K and V of 2 texts, 24 tokens, 16 channels.
  codes = 2 * 2 * 24 * 16 * heads
  assert {owner: whole for owner, (whole, _) in found.codes.items()} == {
    0: codes,
    1: codes,
  }
  assert sum(differ for _, differ in found.codes.values()) < 0.02 * 2 * codes


@pytest.mark.parametrize(
  'changes, message',
  [({'prompt': 25}, 'prompt=25: must lie in 0…24'), ({'chunk': 9}, 'chunk=9')],
)
def test_what_cannot_be_compared_is_refused(changes, message):
  sizes = {'prompt': 8, 'chunk': 8, 'page': 8, **changes}
  with pytest.raises(ValueError, match=message):
    agreement.compare(
      params(), config(), np.zeros((1, LENGTH), np.int32), **sizes
    )


def test_losses_and_margins_follow_from_the_logits():
  # Two texts of two tokens, V = 3. Margins of 1 and 2; the last tokens'
  # successors are unknown.
  whole = np.array([[[2, 1, 0], [0, 4, 0]], [[0, 1, 3], [3, 0, 0.0]]])
  cached = whole.copy()
  cached[:, 1] += 9
  cached[0, 0, 1] += 3  # Tips it.
  cached[1, 0] = [0, 2.5, 2.2]  # Tips it; the second of these margins is 2.
  tokens = np.array([[0, 1], [1, 2]])
  fields = agreement._of_logits(whole, cached, tokens)
  found = agreement.CacheAgreement(*fields, {})
  assert (found.tokens, found.largest_logit) == (2, 3)
  assert found.largest_difference == 3
  assert (found.greedy_differs, found.greedy_margin) == (2, 2)

  def nats(logits, target):
    return np.log(np.sum(np.exp(logits))) - logits[target]

  expected = (nats(whole[0, 0], 1) + nats(whole[1, 0], 2)) / 2
  assert found.loss == pytest.approx(expected, rel=1e-12)
  expected = (nats(cached[0, 0], 1) + nats(cached[1, 0], 2)) / 2
  assert found.cached_loss == pytest.approx(expected, rel=1e-12)


def test_codes_are_compared_where_the_cache_keeps_them():
  # One text of three tokens, K = 2; a chunk of two, then one token padded
  # to two, whose padding repeats it.
  k = np.array([[[1, 2], [3, 4], [5, 6]]], np.int8)
  whole = {0: (k, k + 10)}

  def call(places, k, v, kept):
    return np.array([places]), {0: ((k, v), np.array([kept]))}

  cached = [
    call([0, 1], k[:, :2] + [[[0, 0], [1, 1]]], k[:, :2] + 10, [True, False]),
    call([2, 2], k[:, [2, 2]], k[:, [2, 2]] + [[[10, 11]]], [True, True]),
  ]
  # Tokens 0 and 2 are kept: 2 · 2 · 2 codes, of which one value differs.
  assert agreement._count_codes(whole, cached) == {0: (8, 1)}


def test_texts_of_a_needle_run_are_questions_and_of_a_text_run_documents(
  tmp_path,
):
  experiment = experiment_lib.Experiment(model=config())
  experiment.data.task, experiment.data.length = 'needle', LENGTH
  tokens_BL = tasks.texts(experiment, 3)
  assert tokens_BL.shape == (3, LENGTH)
  assert np.isin(tokens_BL[:, -1], needle.KEYS).all()
  for name, size in ('a', 30), ('b', 5), ('c', 40):
    (tmp_path / f'{name}.txt').write_text(name * size)
  experiment.data.task, experiment.data.path = 'text', str(tmp_path)
  experiment.data.held_out = 0.0
  tokens_BL = tasks.texts(experiment, 2)
  assert tokens_BL.shape == (2, LENGTH)
  # BOS, then the text.
  assert sorted(tokens_BL[:, 1]) == sorted(map(ord, 'ac'))
  assert (tokens_BL[:, 1:] == tokens_BL[:, 1:2]).all()
  *_, last, again = tasks.texts(experiment, 8)
  several = ('\0' + 'a' * 30 + '\0' + 'b' * 5 + '\0' + 'c' * 40).encode()
  assert bytes(last.tolist()) in several * 2
  assert bytes(again.tolist()) in several * 2
