"""The needle's training rows: packed documents whose answers can be found."""

import numpy as np
import pytest

from kaiju_jax.data import packing
from kaiju_jax.tasks.needle import curriculum
from kaiju_jax.tasks.needle import questions as needle

RUN = 400 * 4
# The length of the documents in a row.
BORDERS = {0: 32, 479: 32, 480: 64, 719: 64, 720: 128, 959: 128, 960: 256}


def documents(row):
  for source in range(row.source.max() + 1):
    here = np.flatnonzero(row.source == source)
    assert here.tolist() == list(range(here[0], here[-1] + 1))
    yield row.tokens[here], row.weight[here]


def answers(tokens):
  """What a reader of one document can answer: {place: value}."""
  known, found = {}, {}
  for place in range(1, len(tokens) - 1):
    if tokens[place] in needle.KEYS:
      if tokens[place] in known:
        found[place + 1] = known[tokens[place]]
      known[tokens[place]] = tokens[place + 1]
  return found


@pytest.mark.parametrize('index', [*BORDERS, RUN - 1])
def test_weights_stand_on_exactly_what_the_document_answers(index):
  row = curriculum.Rows(RUN)[index]
  for tokens, weight in documents(row):
    found = answers(tokens)
    assert np.flatnonzero(weight).tolist() == sorted(found)
    assert {place: tokens[place] for place in found} == found
    assert set(weight.tolist()) <= {0.0, 1.0}


def test_stages_follow_each_other_in_rows_of_one_length():
  rows = curriculum.Rows(RUN)
  assert len(rows) == RUN
  for index, length in (BORDERS | {RUN - 1: 256, RUN + 7: 256}).items():
    row = rows[index]
    assert row.tokens.shape == (256,)
    assert np.bincount(row.source).tolist() == [length] * (256 // length)
    assert row.position.tolist() == list(range(length)) * (256 // length)
    begins = np.flatnonzero(row.tokens == needle.BOS)
    assert begins.tolist() == list(range(0, 256, length))


def test_a_longer_run_stretches_the_curriculum():
  rows = curriculum.Rows(10 * RUN)
  assert rows.stage(4799).length == 32
  assert rows.stage(4800).length == 64


def test_documents_of_a_row_do_not_see_each_other():
  batch = packing.stack([curriculum.Rows(RUN)[480]])
  assert batch.limit_BL[0, :64].tolist() == [64] * 64
  assert batch.start_BL[0].tolist() == list(range(256))


def test_first_stage_asks_at_a_third_of_its_tokens():
  rows = curriculum.Rows(RUN)
  share = np.mean([rows[index].weight.mean() for index in range(60)])
  assert 0.28 < share < 0.40


def test_batches_ask_for_each_needle_once_and_streams_for_near_ones():
  rng = np.random.default_rng(0)
  stage = curriculum.Stage(256, 1, (12, 16), streams=0.0, filler=0.3)
  for _ in range(5):
    piece = curriculum.document(rng, stage)
    weighted = np.flatnonzero(piece.weights)
    assert 12 <= len(weighted) <= 16
    assert weighted.tolist() == list(range(257 - 2 * len(weighted), 257, 2))
    assert len(set(piece.tokens[weighted])) == len(weighted)
  stream = curriculum.Stage(256, 1, (12, 16), streams=1.0, filler=0.3)
  near = 0
  for _ in range(20):
    tokens = curriculum.document(rng, stream).tokens
    near += np.sum(
      (tokens[:-2] == tokens[2:]) & np.isin(tokens[2:], needle.KEYS)
    )
  assert near > 20


def test_rows_are_pure_in_seed_and_number():
  again = curriculum.Rows(RUN, seed=3)[77]
  for ours, theirs in zip(curriculum.Rows(RUN, seed=3)[77], again):
    np.testing.assert_array_equal(ours, theirs)
  other = curriculum.Rows(RUN, seed=4)[77]
  assert np.any(other.tokens != again.tokens)
  assert np.any(curriculum.Rows(RUN, seed=3)[78].tokens != again.tokens)


def test_rows_too_short_are_refused():
  with pytest.raises(ValueError, match=r'data\.length=128: .* 256'):
    curriculum.Rows(RUN, length=128)
  with pytest.raises(IndexError):
    curriculum.Rows(RUN)[-1]


@pytest.mark.parametrize('init', curriculum.CURRICULA)
def test_a_run_has_a_whole_number_of_rows_for_every_stage(init):
  stages = curriculum.CURRICULA[init]
  steps = sum(stage.share for stage in stages)
  rows = curriculum.Rows(4 * steps, curriculum=stages)
  starts = np.cumsum([0, *(4 * stage.share for stage in stages)])
  for stage, start, end in zip(stages, starts[:-1], starts[1:]):
    assert rows.stage(start) is rows.stage(end - 1) is stage


def test_a_small_pool_is_all_that_documents_draw_from():
  rng = np.random.default_rng(0)
  stage = curriculum.Stage(64, 1, (2, 4), streams=1.0, filler=0.3, pool=4)
  seen = set()
  for _ in range(60):
    tokens = curriculum.document(rng, stage).tokens
    seen |= set(tokens[tokens < needle.FILLER.start].tolist())
  assert seen == {needle.BOS, *needle.KEYS[:4], *needle.VALUES[:4]}


def test_from_the_standard_start_the_pool_grows_within_one_window():
  from experiments.configs import needle as config

  stages = curriculum.CURRICULA['standard']
  growing = [stage for stage in stages if stage.pool < len(needle.KEYS)]
  pools = [stage.pool for stage in growing]
  assert pools == sorted(set(pools)) and stages[: len(growing)] == tuple(
    growing
  )
  experiment = config.get_config('kaiju_standard')
  assert {stage.length for stage in growing} == {experiment.model.window}
  assert experiment.loop.steps == sum(stage.share for stage in stages)
