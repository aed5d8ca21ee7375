"""Beam search against all sequences, and against a search without a cache."""

import contextlib
import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.decoding.beam import row as beam_row
from kaiju_jax.decoding.beam import search as beam
from kaiju_jax.decoding.beam import tree as beam_tree
from kaiju_jax.decoding.device import cache as cache_lib
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.device import extend
from kaiju_jax.decoding.device import placement
from kaiju_jax.decoding.requests import request
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import paging
from kaiju_jax.model import token_head
from kaiju_jax.model import transformer
from tests.decoding import toys
from tests.decoding.beam import plain as plain_lib

VOCAB_SIZE = 8
EOS = 0
ROWS = 16
LENGTH = 32
SEARCH = beam.Search(8, 12, eos=EOS, length_penalty=1.5, results=6)
# The widest search's: 64 beams of 3 tokens, and one that rests.
EXTRA = 64 * 3


# Interleaved, and a layer reads the keys and values of one before.
PLAIN = toys.config(
  vocab_size=VOCAB_SIZE,
  d_model=16,
  num_heads=2,
  head_dim=8,
  d_ff=32,
  window=5,
  layout='L0 G1 L0',
  tied_embedding=False,
  max_length=LENGTH,
)


@functools.cache
def made(int8):
  """Returns a config and its parameters."""
  config = PLAIN
  if int8:
    config = dataclasses.replace(
      config, layout='L0 G1', quantization=toys.int8()
    )
  return config, params_of(config)


def params_of(config):
  """Returns parameters, sharp enough to have best tokens; none compiled."""
  params = toys.drawn(config, 0.25)
  params['embedding']['head_DV'] *= 2
  return params


@functools.cache
def forward(int8):
  """Returns a function of sequences: hidden states, log-probabilities."""
  config, params = made(int8)
  model = transformer.Transformer(config)
  visibility = visibility_lib.concatenate(
    [visibility_lib.causal(LENGTH)] * ROWS
  )

  @jax.jit
  def run(tokens_BL):
    bound = model.bind({'params': params})
    hidden_BLD = bound.hidden(tokens_BL, visibility)
    return hidden_BLD, jax.nn.log_softmax(bound.logits(hidden_BLD))

  def results(sequences):
    tokens_BL = np.zeros((-(-len(sequences) // ROWS) * ROWS, LENGTH), np.int32)
    for row, sequence in enumerate(sequences):
      tokens_BL[row, : len(sequence)] = sequence
    parts = [
      run(tokens_BL[i : i + ROWS]) for i in range(0, len(tokens_BL), ROWS)
    ]
    return [np.concatenate(x) for x in zip(*jax.device_get(parts))]

  return results


@functools.cache
def searcher_of(int8, tensor=1):
  """Returns a decoder on so many devices, and a search without a hook."""
  config, params = made(int8)
  mesh = placement.make(tensor)
  decoder = decoder_lib.Decoder(
    params, config, rows=2, length=LENGTH, extra=EXTRA, page=4, mesh=mesh
  )
  return decoder, beam.BeamSearch(decoder, SEARCH)


def prompt_of(length, seed=0):
  return np.random.default_rng(seed).integers(0, VOCAB_SIZE, length)


PROMPT = prompt_of(11)


@contextlib.contextmanager
def opened(decoder, prompt, extra=EXTRA):
  """Yields a new row that holds the prompt, and its last hidden state."""
  row = decoder.open(LENGTH, extra)
  for first in range(0, len(prompt), 8):
    hidden_LD = extended(decoder, row, prompt[first : first + 8])
  try:
    yield row, hidden_LD[-1]
  finally:
    decoder.close(row)


def extended(decoder, row, tokens):
  """Appends up to 8 tokens of text; returns their hidden states."""
  tokens_BL = np.pad(tokens, (0, 8 - len(tokens)))[None]
  return decoder.extend_text([row], tokens_BL, [len(tokens)])[0, : len(tokens)]


def plain(prompt, search, judge=None, int8=False):
  """Returns what `plain.search` finds; a judge reads hidden states."""
  run = forward(int8)

  def last(paths):
    sequences = [[*prompt, *tokens] for tokens in paths]
    hidden_BLD, log_BLV = run(sequences)
    ends = [len(sequence) - 1 for sequence in sequences]
    return [
      (hidden_BLD[row, end], log_BLV[row, end]) for row, end in enumerate(ends)
    ]

  return plain_lib.search(last, search, {search.eos}, judge)


def assert_same(found, expected, rtol=1e-4):
  assert [x.tokens for x in found] == [tokens for tokens, _ in expected]
  np.testing.assert_allclose(
    [x.score for x in found], [score for _, score in expected], rtol=rtol
  )


@pytest.mark.parametrize(
  ('depth', 'results'), [(2, 6), pytest.param(3, 20, marks=pytest.mark.slow)]
)
def test_a_width_that_loses_nothing_finds_the_best_of_all(
  monkeypatch, depth, results
):
  decoder, searcher = searcher_of(False)
  search = beam.Search(
    VOCAB_SIZE ** (depth - 1), depth, eos=EOS, length_penalty=1.5,
    results=results,
  )  # fmt: skip
  if depth == 2:
    # As wide as the searches of other tests, whose steps have compiled.
    monkeypatch.setattr(searcher, 'search', search)
  else:
    searcher = beam.BeamSearch(decoder, search)
  every = list(itertools.product(range(VOCAB_SIZE), repeat=depth))
  _, log_BLV = forward(False)([[*PROMPT, *tokens] for tokens in every])
  expected = {}
  for row, tokens in enumerate(every):
    if EOS in tokens:
      tokens = tokens[: tokens.index(EOS) + 1]
    places = len(PROMPT) - 1 + np.arange(len(tokens))
    total = log_BLV[row, places, np.array(tokens)].sum()
    expected[tokens] = total / ((5 + len(tokens)) / 6) ** 1.5
  expected = sorted(expected.items(), key=lambda x: -x[1])[:results]
  with opened(decoder, PROMPT) as (row, hidden_D):
    found = searcher.run(row, hidden_D)
  assert_same(found, expected)
  assert {len(x.tokens) for x in found} == set(range(1, depth + 1))


@pytest.mark.parametrize(
  ('int8', 'tensor'),
  [
    (False, 1),
    pytest.param(True, 1, marks=pytest.mark.slow),
    pytest.param(False, 2, marks=pytest.mark.slow),
  ],
)
def test_the_search_is_one_with_copied_caches(int8, tensor):
  decoder, searcher = searcher_of(int8, tensor)
  with opened(decoder, PROMPT) as (row, hidden_D):
    found = searcher.run(row, hidden_D)
  # A sum in another order may round to another code.
  rtol = 2e-2 if int8 else 1e-4
  assert_same(found, plain(PROMPT, SEARCH, int8=int8), rtol)
  assert {x.ended for x in found} == {True, False}
  _, log_BLV = forward(int8)([[*PROMPT, *x.tokens] for x in found])
  for place, result in enumerate(found):
    places = len(PROMPT) - 1 + np.arange(len(result.tokens))
    expected = log_BLV[place, places, np.array(result.tokens)]
    np.testing.assert_allclose(
      result.log_probabilities, expected, rtol=rtol, atol=rtol
    )


def test_a_search_advances_a_step_per_call_beside_other_rows():
  decoder, searcher = searcher_of(False)
  other = beam.BeamSearch(decoder, SEARCH, calls=searcher.calls)
  with (
    opened(decoder, PROMPT) as (row, hidden_D),
    opened(decoder, prompt_of(6)) as (other_row, other_hidden_D),
  ):
    searcher.begin(row, hidden_D[None, None])
    other.begin(other_row, other_hidden_D[None, None])
    # Until the first step the row is text.
    decoder.check_text(row)
    steps = 0
    while not (searcher.is_done and other.is_done):
      for one in searcher, other:
        if not one.is_done:
          one.dispatch()
      for one in searcher, other:
        one.finish_step()
      steps += 1
      assert max(searcher.step, other.step) == steps
    found, others = searcher.finish(), other.finish()
  assert_same(found, plain(PROMPT, SEARCH))
  assert_same(others, plain(prompt_of(6), SEARCH))
  with (
    opened(decoder, PROMPT) as (row, hidden_D),
    pytest.raises(ValueError, match='candidates=9: calls run 8 at most'),
  ):
    beam.BeamSearch(decoder, beam.Search(9, 3), calls=searcher.calls)


def test_steps_rows_and_prompts_compile_once():
  decoder, searcher = searcher_of(False)
  for length in 3, 14:
    with opened(decoder, prompt_of(length)) as (row, hidden_D):
      searcher.run(row, hidden_D)
  assert searcher.calls._step._cache_size() == 1


@pytest.mark.parametrize(
  ('ended', 'tensor'),
  [
    (False, 1),
    (True, 1),
    pytest.param(False, 2, marks=pytest.mark.slow),
    pytest.param(True, 2, marks=pytest.mark.slow),
  ],
)
def test_a_result_becomes_text_and_does_not_see_its_future(ended, tensor):
  decoder, searcher = searcher_of(False, tensor)
  other, more = prompt_of(13, seed=5), prompt_of(8, seed=6)
  with (
    opened(decoder, other) as (other_row, _),
    opened(decoder, PROMPT) as (row, hidden_D),
  ):
    found = searcher.run(row, hidden_D)
    best = next(x for x in found if x.ended == ended)
    searcher.adopt(best)
    texts = {row: [*PROMPT, *best.tokens], other_row: [*other]}
    for text_row, text in texts.items():
      assert decoder.length_of(text_row) == len(text)
      got_LD = extended(decoder, text_row, more)
      hidden_BLD, _ = forward(False)([[*text, *more]])
      expected_LD = hidden_BLD[0, len(text) : len(text) + 8]
      np.testing.assert_allclose(got_LD, expected_LD, atol=1e-4)
    with pytest.raises(ValueError, match='no result of the last search'):
      searcher.adopt(best)


def test_a_result_that_kept_no_slots_or_lost_its_row():
  decoder, searcher = searcher_of(False)
  with opened(decoder, PROMPT) as (row, hidden_D):
    found = searcher.run(row, hidden_D)
    second = [x for x in found if x.ended][1]
    with pytest.raises(ValueError, match='as 1 better ones did, and kept no'):
      searcher.adopt(second)
    # Until one is adopted the row is no text.
    with pytest.raises(ValueError, match='holds the tree of a search'):
      decoder.extend_text([row], [[1]])
    with pytest.raises(ValueError, match='holds the tree of a search'):
      searcher.run(row, hidden_D)
  with pytest.raises(ValueError, match='closed or extended since'):
    searcher.adopt(found[0])


@pytest.mark.slow
def test_a_ring_that_has_turned_goes_on():
  config, params = made(False)
  search = beam.Search(2, 7)
  decoder = decoder_lib.Decoder(
    params, config, rows=1, length=LENGTH, extra=search.extra, page=4
  )
  assert decoder.network.pools['local'].row_slots == 16
  prompt = prompt_of(21)
  with opened(decoder, prompt, search.extra) as (row, hidden_D):
    searcher = beam.BeamSearch(decoder, search)
    (best,) = searcher.run(row, hidden_D)
    searcher.adopt(best)
    # Positions 12…27 fit 16 slots, of which slot 0 was for position 8.
    assert decoder.cache.kinds['local'].first_R.tolist() == [12]
    more = prompt_of(4, seed=6)
    got_LD = extended(decoder, row, more)
  hidden_BLD, _ = forward(False)([[*prompt, *best.tokens, *more]])
  np.testing.assert_allclose(got_LD, hidden_BLD[0, 28:], atol=1e-4)


def test_a_beams_token_sees_its_own_path():
  decoder, rng = searcher_of(False)[0], np.random.default_rng(2)
  with opened(decoder, PROMPT) as (row, _):
    decoder.lend(row)
    tree = beam_tree.BeamTree(
      len(PROMPT),
      beam_row.find_held(
        decoder.account, decoder.network.pools, row, len(PROMPT)
      ),
    )
    paths = [[*PROMPT]]
    for parents in [0] * 4, [0, 0, 3, 1], [2, 3, 1, 0]:
      tokens = rng.integers(0, VOCAB_SIZE, 4)
      paths = [[*paths[x], y] for x, y in zip(parents, tokens)]
      got_LD = run_chunk(decoder, row, tree.grow(parents), tokens)
    hidden_BLD, _ = forward(False)(paths)
  np.testing.assert_allclose(
    got_LD, hidden_BLD[:4, len(paths[0]) - 1], atol=1e-4
  )


def run_chunk(decoder, row, placed, tokens):

  def reissue(params, cache, row, ranges):
    return None, cache_lib.reissue(cache, row, ranges)

  call = decoder.jit(reissue, donate_argnums=1)
  decoder.run(call, np.int32(row), placed.ranges)
  chunk = beam_row.chunk(row, placed, tokens, 8)
  return decoder.run(extend_chunk(decoder), chunk)[0, : len(tokens)]


@functools.cache
def extend_chunk(decoder):
  return jax.jit(
    functools.partial(extend.chunk, decoder.network), donate_argnums=1
  )


@functools.cache
def judged():
  """Returns a search, and where its hook looks for the judge of a test."""
  judge = {}

  def hook(candidates):
    return jax.pure_callback(
      lambda *fields: judge['now'](*map(np.asarray, fields)),
      jax.ShapeDtypeStruct(candidates.score_C.shape, np.float32),
      *candidates,
    )

  search = beam.Search(4, 6, 12, eos=EOS, length_penalty=0.6, results=4)
  return beam.BeamSearch(searcher_of(False)[0], search, hook), judge


def run_judged(judge):
  searcher, judges = judged()
  judges['now'] = judge
  with opened(searcher_of(False)[0], PROMPT) as (row, hidden_D):
    return searcher.run(row, hidden_D)


def test_a_token_head_guides_by_each_candidates_own_hidden_state():
  rng = np.random.default_rng(1)
  config = token_head.TokenHeadConfig(('kind', 'loud'))
  params = {'w_DC': rng.normal(size=(16, 2)), 'bias_C': np.zeros(2)}

  def head(hidden_BLD):
    logits_BLC = token_head.TokenHead(config).apply(
      {'params': params}, hidden_BLD
    )
    return token_head.reweigh(logits_BLC, np.array([2.0, -1.0]))

  def hook(candidates):
    return candidates.total_C + head(candidates.hidden_CD[None])[0]

  decoder, _ = searcher_of(False)
  search = beam.Search(4, 6, 12, results=4)
  with opened(decoder, PROMPT) as (row, hidden_D):
    found = beam.BeamSearch(decoder, search, hook).run(row, hidden_D)
  expected = plain(
    PROMPT, search, lambda total, x_D: total + head(x_D[None, None])[0, 0]
  )
  assert_same(found, expected)
  unguided = plain(PROMPT, search)
  assert [x for x, _ in expected] != [x for x, _ in unguided]


def test_a_hook_sees_true_scores_and_hidden_states():
  seen, paths = [], [()]

  def judge(token_C, beam_C, log_probability_C, total_C, score_C, hidden_CD):
    real = int((score_C > -np.inf).sum())
    nonlocal paths
    grown = [(*paths[beam_C[i]], int(token_C[i])) for i in range(real)]
    for i, path in enumerate(grown):
      seen.append((path, log_probability_C[i], total_C[i], hidden_CD[i]))
    # Every other candidate survives, none by its log-probability.
    adjusted_C = -np.arange(12, dtype=np.float32) / 100
    adjusted_C[1::2] = -np.inf
    paths = [x for x in grown[:8:2] if x[-1] != EOS]
    # Whatever padding is given, it stays out.
    adjusted_C[real:] = 5.0
    return adjusted_C

  run_judged(judge)
  assert {len(path) for path, *_ in seen} == set(range(1, 7))
  for first in range(0, len(seen), ROWS):
    part = seen[first : first + ROWS]
    hidden_BLD, log_BLV = forward(False)(
      [[*PROMPT, *path] for path, *_ in part]
    )
    for (path, log, total, hidden_D), x_LD, log_LV in zip(
      part, hidden_BLD, log_BLV
    ):
      end = len(PROMPT) + len(path) - 1
      logs = log_LV[np.arange(len(PROMPT) - 1, end), np.array(path)]
      np.testing.assert_allclose(hidden_D, x_LD[end], atol=1e-4)
      np.testing.assert_allclose(
        [log, total], [logs[-1], logs.sum()], rtol=1e-3
      )


def test_a_vetoed_token_never_shows():
  favourite = run_judged(lambda *fields: fields[4])[-1].tokens[0]
  found = run_judged(
    lambda *fields: np.where(fields[0] == favourite, -np.inf, fields[4])
  )
  assert len(found) == 4
  assert not any(favourite in x.tokens for x in found)


def test_a_hook_of_another_shape_is_named():
  decoder, _ = searcher_of(False)
  searcher = beam.BeamSearch(decoder, SEARCH, lambda candidates: 0.0)
  with (
    opened(decoder, PROMPT) as (row, hidden_D),
    pytest.raises(ValueError, match=r'hook returned shape \(\): expected \(8,'),
  ):
    searcher.run(row, hidden_D)


@pytest.mark.parametrize('score', [np.nan, np.inf])
def test_scores_that_are_no_numbers_are_named(score):
  def judge(*fields):
    score_C = fields[4].copy()
    score_C[3] = score
    return score_C

  with pytest.raises(
    ValueError, match=f'row 0, step 1: the hook gave candidate 3.*{score}'
  ):
    run_judged(judge)


def test_a_row_without_text_or_without_room_for_more():
  decoder, searcher = searcher_of(False)
  with (
    opened(decoder, prompt_of(21)) as (row, hidden_D),
    pytest.raises(ValueError, match='room for 11 more: expected a text'),
  ):
    searcher.run(row, hidden_D)
  with (
    opened(decoder, PROMPT) as (row, hidden_D),
    pytest.raises(ValueError, match=r'\(1, 16\): expected \(16,\)'),
  ):
    searcher.run(row, hidden_D[None])


@pytest.mark.parametrize('seed', range(5))
def test_extra_slots_are_enough_for_any_search(seed):
  rng = np.random.default_rng(seed)
  for _ in range(100):
    width, depth, resting = rng.integers(1, 9, 3)
    search = beam.Search(
      width, depth, width + rng.integers(0, 9), eos=EOS, resting=resting
    )
    guide = request.Guide(width, search.queries)
    if resting == 1:
      assert guide.extra(depth) == search.extra
    prompt, window = rng.integers(1, 30, 2)
    layers = layers_lib.parse('L0 G1', window)
    pools = paging.pools(
      layers,
      1,
      prompt + depth,
      page=int(rng.integers(2, 9)),
      extra=search.extra,
    )
    for pool in pools.values():
      windows = {pool.window}
      if pool.window is not None:
        windows.add(pool.window + pool.page - 1)  # With whole pages.
      for window in windows:
        assert pool.row_slots >= toys.most_slots(
          prompt, width, depth, search.queries, resting, window
        )


@pytest.mark.parametrize(
  'options, message',
  [
    ({'width': 0, 'depth': 1}, 'width=0: must be at least 1'),
    ({'width': 2, 'depth': 0}, 'depth=0: must be at least 1'),
    ({'width': 2, 'depth': 1, 'candidates': 1}, 'at least width=2'),
    ({'width': 2, 'depth': 1, 'results': 3}, 'at most width=2'),
    ({'width': 2, 'depth': 1, 'resting': -1}, 'resting=-1: must be at least 0'),
    ({'width': 2, 'depth': 1, 'length_penalty': -0.5}, 'length_penalty=-0.5'),
  ],
)
def test_an_impossible_search_is_refused(options, message):
  with pytest.raises(ValueError, match=message):
    beam.Search(**options)


def test_a_search_that_its_decoder_cannot_run_is_refused():
  config, params = made(False)
  with pytest.raises(ValueError, match='eos=8: a token is 0…7'):
    beam.BeamSearch(searcher_of(False)[0], beam.Search(2, 1, eos=8))
  reference = decoder_lib.Decoder(
    params, config, rows=1, length=8, mode='reference'
  )
  with pytest.raises(ValueError, match="needs a Decoder of mode='fast'"):
    beam.BeamSearch(reference, beam.Search(2, 1))


def caches_of_eight(prompt, depth, page):
  """Returns a config, a search, and the pools of eight beams and of copies."""
  length = prompt + depth
  config = dataclasses.replace(
    PLAIN, window=length, max_length=length, layout='L0 G1'
  )
  search = beam.Search(8, depth, results=8)
  beams = paging.pools(
    config.layers(), 1, length, page=page, extra=search.extra
  )
  copies = paging.pools(config.layers(), 8, length, page=page)
  assert copies['global'].row_slots == length
  return config, search, beams, copies


def test_eight_beams_take_a_quarter_of_eight_copies():
  config, _, beams, copies = caches_of_eight(896, 128, 64)
  taken = paging.bytes_of(config, beams, 1)
  assert 4 * taken <= paging.bytes_of(config, copies, 8)


@pytest.mark.slow
def test_eight_beams_find_their_tokens_in_a_quarter_of_the_slots():
  prompt, depth, page = 224, 32, 16
  config, search, pools, _ = caches_of_eight(prompt, depth, page)
  params = params_of(config)
  length = prompt + depth
  decoder = decoder_lib.Decoder(
    params, config, rows=1, length=length, extra=search.extra, page=page
  )
  assert decoder.cache_bytes == paging.bytes_of(config, pools, 1)
  row = decoder.open(length, search.extra)
  tokens = prompt_of(prompt)
  hidden_BLD = decoder.extend_text([row], tokens[None])
  searcher = beam.BeamSearch(decoder, search)
  found = searcher.run(row, hidden_BLD[0, -1])
  # The cache that was searched is the one that was measured.
  assert decoder.cache_bytes == cache_lib.bytes_of(decoder.cache)
  texts_BL = np.array([[*tokens, *x.tokens] for x in found])
  visibility = visibility_lib.concatenate([visibility_lib.causal(length)] * 8)
  logits_BLV = jax.jit(transformer.Transformer(config).apply)(
    {'params': params}, texts_BL, visibility
  )
  log_BLV = np.asarray(jax.nn.log_softmax(logits_BLV))[:, prompt - 1 : -1]
  taken_BL1 = np.take_along_axis(log_BLV, texts_BL[:, prompt:, None], axis=2)
  np.testing.assert_allclose(
    [x.log_probabilities for x in found], taken_BL1[..., 0], atol=1e-4
  )
