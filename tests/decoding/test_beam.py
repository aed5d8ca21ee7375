"""Beam search against all sequences, and against a search without a cache."""

import contextlib
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax import visibility as visibility_lib
from kaiju_jax.decoding import beam
from kaiju_jax.decoding import beam_tree
from kaiju_jax.decoding import decoder as decoder_lib
from kaiju_jax.decoding import row as row_lib
from kaiju_jax.model import config as model_config
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config

EOS = 0
ROWS = 16
LENGTH = 32
NONE = quantization_config.none()
SEARCH = beam.Search(8, 12, eos=EOS, length_penalty=0.6, results=4)
EXTRA = SEARCH.extra


def small_config(quantization=NONE, vocab_size=17, **changes):
  return model_config.ModelConfig(
    vocab_size=vocab_size,
    d_model=16,
    num_heads=2,
    head_dim=8,
    d_ff=32,
    window=5,
    # Interleaved, and both kinds share keys and values.
    layout='L0 G1 L0 G1',
    tied_embedding=False,
    max_length=1024,
    dtype='float32',
    quantization=quantization,
    **changes,
  )


@functools.cache
def made(vocab_size, int8):
  """Returns a config and parameters, sharp enough to have best tokens."""
  quantization = quantization_config.QuantizationConfig() if int8 else NONE
  config = small_config(quantization, vocab_size)
  visibility = visibility_lib.causal(4)
  # Compiled without the forward pass, which `init` traces and does not need.
  init = jax.jit(transformer.Transformer(config).init)
  params = init(jax.random.key(3), np.zeros((1, 4), np.int32), visibility)
  params = params['params']
  params['embedding']['head_DV'] *= 2.0
  return config, params


@functools.cache
def forward(vocab_size, int8, rows, length):
  """Returns a function of sequences: hidden states, log-probabilities."""
  config, params = made(vocab_size, int8)
  model = transformer.Transformer(config)
  visibility = visibility_lib.concatenate(
    [visibility_lib.causal(length)] * rows
  )

  @jax.jit
  def run(tokens_BL):
    bound = model.bind({'params': params})
    hidden_BLD = bound.hidden(tokens_BL, visibility)
    return hidden_BLD, jax.nn.log_softmax(bound.logits(hidden_BLD))

  def results(sequences):
    tokens_BL = np.zeros((rows, length), np.int32)
    for row, sequence in enumerate(sequences):
      tokens_BL[row, : len(sequence)] = sequence
    return jax.device_get(run(tokens_BL))

  return results


@functools.cache
def decoder_of(vocab_size, int8, extra):
  config, params = made(vocab_size, int8)
  return decoder_lib.Decoder(
    params, config, rows=2, length=LENGTH, extra=extra, page=4
  )


@functools.cache
def searcher_of(int8):
  decoder = decoder_of(17, int8, EXTRA)
  return decoder, beam.BeamSearch(decoder, SEARCH)


def prompt_of(length, vocab_size=17, seed=0):
  return np.random.default_rng(seed).integers(0, vocab_size, length)


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


def plain(prompt, search, bonus=lambda tokens, hidden_D: 0.0, int8=False):
  """The same search, each path run from its first token each time."""
  run = forward(17, int8, ROWS, LENGTH)

  def last(paths):
    sequences = [[*prompt, *tokens] for tokens in paths]
    hidden_BLD, log_BLV = run(sequences)
    ends = [len(sequence) - 1 for sequence in sequences]
    return [
      (hidden_BLD[row, end], log_BLV[row, end]) for row, end in enumerate(ends)
    ]

  live, ended = {(): (0.0, last([()])[0][1])}, {}
  for _ in range(search.depth):
    grown = {
      (*tokens, token): score + log_V[token]
      for tokens, (score, log_V) in live.items()
      for token in range(len(log_V))
    }
    candidates = sorted(grown, key=grown.get)[::-1][: search.queries]
    read = dict(zip(candidates, last(candidates)))
    judged = {x: grown[x] + bonus(x, read[x][0]) for x in candidates}
    best = sorted(judged, key=judged.get)[::-1][: search.width]
    best = [x for x in best if judged[x] > -np.inf]
    live = {x: (judged[x], read[x][1]) for x in best if x[-1] != search.eos}
    ended |= {x: judged[x] for x in best if x[-1] == search.eos}
    if not live:
      break
  final = ended | {tokens: score for tokens, (score, _) in live.items()}
  final = {
    tokens: score / ((5 + len(tokens)) / 6) ** search.length_penalty
    for tokens, score in final.items()
  }
  return sorted(final.items(), key=lambda x: -x[1])[: search.results]


def assert_same(found, expected):
  assert [x.tokens for x in found] == [tokens for tokens, _ in expected]
  np.testing.assert_allclose(
    [x.score for x in found], [score for _, score in expected], rtol=1e-4
  )


@pytest.mark.parametrize('eos, length_penalty', [(None, 0.0), (EOS, 1.5)])
def test_a_width_that_loses_nothing_finds_the_best_of_all(eos, length_penalty):
  vocab_size, depth, prompt = 4, 4, prompt_of(7, 4)
  search = beam.Search(
    64, depth, eos=eos, length_penalty=length_penalty, results=10
  )
  _, log_BLV = forward(vocab_size, False, 256, 11)(
    [[*prompt, *x] for x in itertools.product(range(vocab_size), repeat=depth)]
  )
  expected = {}
  for row, tokens in enumerate(
    itertools.product(range(vocab_size), repeat=depth)
  ):
    if eos in tokens:
      tokens = tokens[: tokens.index(eos) + 1]
    total = sum(log_BLV[row, 6 + i, token] for i, token in enumerate(tokens))
    expected[tokens] = total / ((5 + len(tokens)) / 6) ** length_penalty
  expected = sorted(expected.items(), key=lambda x: -x[1])[:10]
  decoder = decoder_of(vocab_size, False, 4 * 64)
  with opened(decoder, prompt, 4 * 64) as (row, hidden_D):
    found = beam.BeamSearch(decoder, search).run(row, hidden_D)
  assert_same(found, expected)
  lengths = {len(x.tokens) for x in found}
  assert lengths == {depth} if eos is None else len(lengths) > 1


@pytest.mark.parametrize('int8', [False, True])
def test_the_search_is_one_with_copied_caches(int8):
  (decoder, searcher), prompt = searcher_of(int8), PROMPT
  with opened(decoder, prompt) as (row, hidden_D):
    found = searcher.run(row, hidden_D)
  assert_same(found, plain(prompt, SEARCH, int8=int8))
  assert {x.ended for x in found} == {True, False}
  _, log_BLV = forward(17, int8, ROWS, LENGTH)(
    [[*prompt, *x.tokens] for x in found]
  )
  for beam_row, result in enumerate(found):
    places = len(prompt) - 1 + np.arange(len(result.tokens))
    expected = log_BLV[beam_row, places, np.array(result.tokens)]
    np.testing.assert_allclose(
      result.log_probabilities, expected, rtol=1e-3, atol=1e-4
    )


def test_steps_rows_and_prompts_compile_once():
  decoder, searcher = searcher_of(False)
  for length in 3, 14:
    with opened(decoder, prompt_of(length)) as (row, hidden_D):
      searcher.run(row, hidden_D)
  assert searcher._step._cache_size() == 1


@pytest.mark.parametrize('ended', [False, True])
def test_a_result_becomes_text_and_does_not_see_its_future(ended):
  decoder, searcher = searcher_of(False)
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
      hidden_BLD, _ = forward(17, False, ROWS, LENGTH)([[*text, *more]])
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
  with pytest.raises(ValueError, match='closed or extended since'):
    searcher.adopt(found[0])


def test_a_chunk_after_every_beam_does_not_see_its_future():
  decoder, rng = decoder_of(17, False, EXTRA), np.random.default_rng(2)
  with opened(decoder, PROMPT) as (row, _):
    tree = beam_tree.BeamTree(
      len(PROMPT), row_lib.held(decoder.cache, decoder.engine.pools, row)
    )
    paths = [[*PROMPT]]
    for parents in [0] * 4, [0, 0, 3, 1], [2, 3, 1, 0]:
      tokens = rng.integers(0, 17, 4)
      paths = [[*paths[x], y] for x, y in zip(parents, tokens)]
      run_chunk(decoder, row, tree.grow(parents), tokens)
    counts, tokens = [3, 0, 4, 1], rng.integers(0, 17, 8)
    got_LD = run_chunk(decoder, row, tree.follow(counts), tokens)
  chunks = np.split(tokens, np.cumsum(counts)[:-1])
  hidden_BLD, _ = forward(17, False, ROWS, LENGTH)(
    [[*path, *chunk] for path, chunk in zip(paths, chunks)]
  )
  length = len(PROMPT) + 3
  expected_LD = np.concatenate(
    [x_LD[length : length + count] for x_LD, count in zip(hidden_BLD, counts)]
  )
  np.testing.assert_allclose(got_LD, expected_LD, atol=1e-4)


def run_chunk(decoder, row, placed, tokens):
  decoder.reissue(row, placed.ranges)
  chunk = row_lib.chunk(row, placed, tokens, 8)
  return decoder.extend_chunk(chunk)[0, : len(tokens)]


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
  return beam.BeamSearch(decoder_of(17, False, EXTRA), search, hook), judge


def run_judged(judge):
  searcher, judges = judged()
  judges['now'] = judge
  with opened(decoder_of(17, False, EXTRA), PROMPT) as (row, hidden_D):
    return searcher.run(row, hidden_D)


def test_a_hook_reweighs_by_each_candidates_own_hidden_state():
  probe_D = np.random.default_rng(1).normal(size=16).astype(np.float32)
  found = run_judged(lambda *fields: fields[4] + 0.3 * fields[5] @ probe_D)
  searcher, _ = judged()

  def bonus(tokens, hidden_D):
    return 0.3 * hidden_D @ probe_D

  expected = plain(PROMPT, searcher.search, bonus)
  assert_same(found, expected)
  unguided = plain(PROMPT, searcher.search)
  assert [x for x, _ in expected] != [x for x, _ in unguided]


def test_a_hook_is_told_what_is_so():
  seen, paths = [], [()]

  def judge(token_C, beam_C, log_probability_C, total_C, score_C, hidden_CD):
    real = int((score_C > -np.inf).sum())
    nonlocal paths
    grown = [(*paths[beam_C[i]], int(token_C[i])) for i in range(real)]
    for i, path in enumerate(grown):
      seen.append((path, log_probability_C[i], total_C[i], hidden_CD[i]))
    # Every other candidate survives, none by its log-probability.
    adjusted_C = -np.arange(12.0, dtype=np.float32)
    adjusted_C[1::2] = -np.inf
    paths = [x for x in grown[:8:2] if x[-1] != EOS]
    # Whatever padding is given, it stays out.
    adjusted_C[real:] = 5.0
    return adjusted_C

  run_judged(judge)
  assert {len(path) for path, *_ in seen} == set(range(1, 7))
  for first in range(0, len(seen), ROWS):
    part = seen[first : first + ROWS]
    hidden_BLD, log_BLV = forward(17, False, ROWS, LENGTH)(
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
  favourite = run_judged(lambda *fields: fields[4])[0].tokens[1]
  found = run_judged(
    lambda *fields: np.where(fields[0] == favourite, -np.inf, fields[4])
  )
  assert len(found) == 4
  assert not any(favourite in x.tokens for x in found)


def test_vetoes_of_everything_are_named():
  def veto(*fields):
    return np.full(12, -np.inf, np.float32)

  with pytest.raises(
    beam.Vetoed, match='row 0, step 1: the hook vetoed all 12 candidates'
  ):
    run_judged(veto)


@pytest.mark.parametrize('score', [np.nan, np.inf])
def test_scores_that_are_no_numbers_are_named(score):
  def judge(*fields):
    score_C = fields[4].copy()
    score_C[3] = score
    return score_C

  with pytest.raises(
    beam.NotANumber, match=f'row 0, step 1: the hook gave candidate 3.*{score}'
  ):
    run_judged(judge)


def test_logits_that_are_nan_are_named():
  decoder, searcher = searcher_of(False)
  params = decoder.params
  with opened(decoder, PROMPT) as (row, hidden_D):
    with pytest.raises(beam.NotANumber, match='row 0, step 0: the logits'):
      searcher.run(row, hidden_D * np.nan)
    broken = {**params, 'final_norm': {'gain_D': jnp.full(16, jnp.nan)}}
    decoder.params = broken
    with pytest.raises(beam.NotANumber, match='step 1: the logits of candid'):
      searcher.run(row, hidden_D)
    decoder.params = params


def test_a_row_without_room_for_the_beams():
  decoder, searcher = searcher_of(False)
  with (
    opened(decoder, PROMPT, 0) as (row, hidden_D),
    pytest.raises(
      beam_tree.Exhausted, match=r"global: 8 new tokens want a slot .* row's 32"
    ),
  ):
    searcher.run(row, hidden_D)


def test_a_row_without_text_or_without_room_for_more():
  decoder, searcher = searcher_of(False)
  with (
    opened(decoder, prompt_of(21)) as (row, hidden_D),
    pytest.raises(ValueError, match='expected 1…20, for depth'),
  ):
    searcher.run(row, hidden_D)
  with (
    opened(decoder, PROMPT) as (row, hidden_D),
    pytest.raises(ValueError, match=r'\(1, 16\): expected \(16,\)'),
  ):
    searcher.run(row, hidden_D[None])


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
def test_a_search_that_cannot_be(options, message):
  with pytest.raises(ValueError, match=message):
    beam.Search(**options)


def test_a_search_that_its_decoder_cannot_run():
  config, params = made(17, False)
  with pytest.raises(ValueError, match='eos=17: a token is 0…16'):
    beam.BeamSearch(decoder_of(17, False, EXTRA), beam.Search(2, 1, eos=17))
  reference = decoder_lib.Decoder(
    params, config, rows=1, length=8, mode='reference'
  )
  with pytest.raises(ValueError, match="needs a Decoder of mode='fast'"):
    beam.BeamSearch(reference, beam.Search(2, 1))
