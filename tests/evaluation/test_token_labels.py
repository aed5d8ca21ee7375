"""AUROC against its definition, and delays of drawn scores."""

import numpy as np
import pytest
from scipy import special

from kaiju_jax.data import packing
from kaiju_jax.data import spans
from kaiju_jax.evaluation import token_labels
from kaiju_jax.model import token_head
from kaiju_jax.model import transformer
from tests.decoding import toys


def test_auroc_is_the_share_of_pairs_in_order():
  rng = np.random.default_rng(0)
  for values in (3, 10, 1000):  # Many ties, some, and hardly any.
    score_S = rng.integers(values, size=200).astype(np.float32)
    label_S = rng.random(200) < 0.1
    above = score_S[label_S][:, None] - score_S[~label_S]
    expected = ((above > 0) + (above == 0) / 2).mean()
    found = token_labels.auroc(score_S, label_S)
    assert found == pytest.approx(expected, abs=1e-12)
    assert token_labels.auroc(-score_S, label_S) == pytest.approx(1 - found)
  assert token_labels.auroc(np.zeros(9), np.arange(9) < 2) == 0.5
  assert token_labels.auroc(np.arange(9), np.arange(9) > 6) == 1.0


def test_one_kind_of_token_has_no_auroc():
  for label_S in np.zeros(3, bool), np.ones(3, bool):
    with pytest.raises(ValueError, match='needs both kinds'):
      token_labels.auroc(np.zeros(3), label_S)
  with pytest.raises(ValueError, match='NaN'):
    token_labels.auroc(np.array([0, np.nan]), np.array([True, False]))


def scored(*documents):
  """Returns `Scored` of documents of (score, label), 2 without a weight."""
  pairs = [pair for one in documents for pair in one]
  begins = [n == 0 for one in documents for n in range(len(one))]
  score_SC, label_SC = (np.array([pair]).T for pair in zip(*pairs))
  return token_labels.Scored(
    score_SC.astype(float), label_SC > 0, 1.0 * (label_SC < 2), np.array(begins)
  )


def test_a_delay_is_counted_from_the_end_of_a_span_within_its_document():
  benign = [(0, 0)] * 2000
  found = scored(
    benign,
    [(9, 1), (0, 1), (0, 0)],  # Recognized before it ends.
    [(0, 1), (9, 1), (0, 0)],  # With its last token.
    [(0, 1), (0, 1), (0, 0), (9, 0), (0, 0)],  # Two tokens late.
    [(0, 1), (0, 1)],  # Never, though the next document begins high.
    [(9, 0), (0, 0), (0, 1)],
    [(0, 1), (9, 1)],
  )
  measured = token_labels.measure(found, 0)
  assert (measured.spans, measured.tokens) == (6, 11)
  assert measured.delays.tolist() == [0, 0, 2, 0]
  assert [measured.count_within(most) for most in (0, 1, 2)] == [3, 3, 4]
  assert 0 <= measured.threshold < 9


def test_a_token_without_a_weight_is_in_its_span_and_has_no_rank():
  documents = [(0, 0)] * 999, [(-9, 2), (3, 1)], [(9, 2), (-1, 1), (2, 0)]
  measured = token_labels.measure(scored(*documents), 0)
  assert (measured.spans, measured.tokens) == (2, 2)
  # One is above all 1,000 others, one below all.
  assert measured.auroc == pytest.approx(0.5)
  assert measured.delays.tolist() == [0, 0]


@pytest.mark.parametrize('weight', [1.0, 40.0])
def test_odds_that_are_true_are_calibrated_whatever_labels_weighed(weight):
  rng = np.random.default_rng(0)
  p_S = rng.choice([0.001, 0.04, 0.3, 0.9], 40_000, p=[0.9, 0.06, 0.03, 0.01])
  label_S = rng.random(len(p_S)) < p_S
  # A head whose loss weighs labelled tokens more often says yes.
  true_S = np.log(p_S / (1 - p_S))
  score_S = true_S + np.log(weight)
  weight_S = 2.5 * np.where(label_S, weight, 1.0)
  begin_S = np.arange(len(p_S)) % 50 == 0

  def error(score_S):
    columns = (one[:, None] for one in (score_S, label_S, weight_S))
    found = token_labels.Scored(*columns, begin_S)
    return token_labels.measure(found, 0).error

  # Four bins, by their definition.
  expected = sum(
    abs((p_S - label_S)[p_S == p].sum()) for p in np.unique(p_S)
  ) / len(p_S)
  # The two smallest are in one bin.
  assert error(score_S) <= expected < 0.004
  # What is too sure both ways does not cancel.
  sure_S = special.expit(2 * true_S)
  excess = [
    (sure_S - label_S)[(n <= 15 * sure_S) & (15 * sure_S < n + 1)].sum()
    for n in range(15)
  ]
  sure = error(2 * true_S + np.log(weight))
  assert sure == pytest.approx(np.abs(excess).sum() / len(p_S))
  assert sure > 1.2 * abs(sum(excess)) / len(p_S)
  off = error(score_S + 2)
  moved_S = special.expit(true_S + 2)
  assert off == pytest.approx((moved_S - label_S).mean(), rel=1e-6)
  assert off > 0.02


def test_false_alarms_are_counted_where_99_of_100_are_found():
  found = [(n / 10, 1) for n in range(100)]  # .1 is the second lowest.
  others = [(0.05, 0)] * 700 + [(0.1, 0)] * 30 + [(0.5, 0)] * 3
  measured = token_labels.measure(scored(found, others, [(0.7, 2)]), 0)
  assert measured.alarms == (33, 733)


def test_spans_of_neighbouring_documents_do_not_run_together():
  label_S = np.array([0, 1, 1, 1, 0, 1], bool)
  begin_S = np.array([1, 0, 0, 1, 0, 0], bool)
  found = token_labels.find_runs(label_S, begin_S)
  assert found == [(1, 3), (3, 4), (5, 6)]
  assert token_labels.find_runs(~label_S, begin_S) == [(0, 1), (4, 5)]


class Rows:
  """Three rows of two documents; padding behind them."""

  def __len__(self):
    return 3

  def __getitem__(self, index):
    label_LC = np.eye(8, 2, dtype=np.float32)
    pieces = [
      packing.Piece(np.arange(size) + index, source=2 * index + n)
      for n, size in enumerate((3, 4))
    ]
    row = packing.row(pieces, 8)
    weight_LC = np.eye(8, 2, k=1, dtype=np.float32)
    return row._replace(extras={spans.LABEL: label_LC, spans.WEIGHT: weight_LC})


def test_scores_are_those_of_the_head_without_padding():
  config = toys.config(vocab_size=16, layout='L0', max_length=8)
  params = toys.drawn(config, 0.1)
  rng = np.random.default_rng(0)
  weight_DC = rng.normal(size=(config.d_model, 2)).astype(np.float32)
  head = {'w_DC': weight_DC, 'bias_C': np.array([0.5, -0.5], np.float32)}
  found = token_labels.score(
    transformer.Transformer(config),
    {**params, 'token_head': head},
    token_head.TokenHeadConfig(('a', 'b')),
    Rows(),
    batch=2,
  )
  assert found.score_SC.shape == found.label_SC.shape == (21, 2)
  weight_SC = np.tile(np.eye(7, 2, k=1), (3, 1))
  np.testing.assert_array_equal(found.weight_SC, weight_SC)
  begins = [n for start in (0, 7, 14) for n in (start, start + 3)]
  assert np.flatnonzero(found.begin_S).tolist() == begins
  # A document's scores do not depend on what is packed beside it.
  np.testing.assert_allclose(
    found.score_SC[3:5], found.score_SC[0:2], rtol=1e-4, atol=1e-4
  )
