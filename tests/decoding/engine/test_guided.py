"""Guided sequences in an engine, against searches that have a decoder alone."""

import dataclasses
import functools
import types
from unittest import mock

import jax
import numpy as np
import pytest

from kaiju_jax import visibility
from kaiju_jax.data import tokenizer
from kaiju_jax.decoding.beam import calls as beam_calls
from kaiju_jax.decoding.beam import search as beam
from kaiju_jax.decoding.beam import slots as beam_slots
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import compiled
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.engine import searches
from kaiju_jax.decoding.engine import sequence as sequence_lib
from kaiju_jax.decoding.pages import rows as rows_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.model import transformer
from tests.decoding import toys
from tests.decoding.beam import plain as plain_lib

Request, Sampling, Guide = (
  request_lib.Request,
  sampling.Sampling,
  request_lib.Guide,
)
ROWS, LENGTH, PAGE, CHUNK, CANDIDATES = 4, 48, 4, 8, 6
CONFIG, HEAD = toys.small(window=9), toys.HEAD
PLAIN, DEPTH = Guide(3, CANDIDATES), 8
STEERED = Guide(3, CANDIDATES, {'kind': 6.0, 'loud': -3.0})


class World:
  """One decoder for all engines; what they compile is for all, too."""

  def __init__(self):
    self.params = toys.drawn(CONFIG)
    self.decoder = decoder_lib.Decoder(
      self.params,
      CONFIG,
      rows=ROWS,
      length=LENGTH,
      page=PAGE,
      extra=PLAIN.extra(DEPTH),
    )
    self.rounds = self.calls = None

  def engine(self, **options):
    """Returns an engine without points."""
    self.forget()
    make_rounds, make_calls = compiled.Rounds, beam_calls.Calls

    def rounds(*arguments):
      if self.rounds is None:
        self.rounds = make_rounds(*arguments)
        # Prompts of any number in one call, and all rows in a step.
        self.rounds._shapes, self.rounds._widths = [(4, CHUNK)], [ROWS]
      return self.rounds

    def calls(*arguments):
      self.calls = self.calls or make_calls(*arguments)
      return self.calls

    with (
      mock.patch.object(compiled, 'Rounds', rounds),
      mock.patch.object(beam_calls, 'Calls', calls),
    ):
      return engine_lib.Engine(
        self.decoder,
        tokenizer.Bytes(),
        chunk=CHUNK,
        head=toys.head_of(),
        candidates=CANDIDATES,
        **options,
      )

  def forget(self):
    while self.decoder.account.tree.evict():
      pass

  def searched(self, request):
    """Returns the best beam of `BeamSearch.run`, by the engine's calls."""
    guide, tokens_L = request.guided, np.array(request.tokens)
    search = beam.Search(
      guide.width, request.max_tokens, guide.candidates, results=1
    )
    row = self.decoder.open(extra=self.decoder.extra)
    try:
      for begin in range(0, len(tokens_L), CHUNK):
        chunk = compiled.Chunk(row, tokens_L[begin : begin + CHUNK])
        self.rounds.prefill([chunk], (4, CHUNK))
      weights = toys.head_of()[0], np.zeros(3, np.float32)
      searcher = beam.BeamSearch(
        self.decoder,
        search,
        calls=self.calls,
        arguments=weights,
        keeps_pages=True,  # Slots are then the same, and so are bits.
      )
      return searcher.run(row, self.rounds.last_BLD[0, 0])[0]
    finally:
      self.decoder.close(row)


@pytest.fixture(scope='module')
def world():
  return World()


@pytest.fixture(autouse=True)
def all_is_free_in_the_end(world):
  yield
  world.forget()
  account = world.decoder.account
  rows, held = account.open_rows, account.pages.count_held
  kinds = {kind: held(kind) for kind in account.pages.kinds}
  for row in rows:
    world.decoder.close(row)  # One test that fails is enough.
  assert not rows and set(kinds.values()) == {0}


@pytest.fixture(scope='module')
def whole(world):
  """Returns a function of a text: log-probabilities, and logits of the head."""
  model = transformer.Transformer(CONFIG)

  @jax.jit
  def run(params, tokens_BL):
    bound = model.bind({'params': params})
    hidden_BLD = bound.hidden(tokens_BL, visibility.causal(LENGTH))
    head = toys.head_of()[0]
    logits_BLC = hidden_BLD @ head['w_DC'] + head['bias_C'][None, None]
    return jax.nn.log_softmax(bound.logits(hidden_BLD))[0], logits_BLC[0]

  @functools.cache
  def known(text):
    tokens_BL = np.zeros((1, LENGTH), np.int32)
    tokens_BL[0, : len(text)] = text
    return jax.device_get(run(world.params, tokens_BL))

  return lambda text: known(tuple(text))


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def plain(whole, request):
  """Returns the best tokens: each path runs from its first token each time."""
  guide, prompt = request.guided, request.tokens
  weight_C = np.array([guide.weights.get(name, 0.0) for name in HEAD.names])

  def last(paths):
    found = [whole([*prompt, *tokens]) for tokens in paths]
    ends = [len(prompt) + len(tokens) - 1 for tokens in paths]
    return [(logits[end], log[end]) for (log, logits), end in zip(found, ends)]

  def judge(total, logits_C):
    logits_C = np.where(weight_C > 0, logits_C, -logits_C)
    return total + (abs(weight_C) * np.log(sigmoid(logits_C))).sum()

  settings = beam.Search(
    guide.width,
    request.max_tokens,
    guide.queries,
    length_penalty=guide.length_penalty,
  )
  stops = set(request.stop_tokens)
  ((tokens, _),) = plain_lib.search(last, settings, stops, judge)
  return tokens


def guided(length, seed, guide=PLAIN, most=DEPTH, **fields):
  return Request(toys.text(length, seed), most, guided=guide, **fields)


@pytest.mark.parametrize('ahead', [False, True])
def test_guided_sequences_find_what_a_search_without_a_cache_finds(
  world, whole, ahead
):
  engine = world.engine(ahead=ahead)
  requests = [
    guided(5, 1),
    guided(21, 2, STEERED),
    guided(13, 3, STEERED),
    # Fewer beams and candidates share the call of the others.
    guided(9, 4, Guide(2, 3, length_penalty=1.0), most=5),
  ]
  likely = plain(whole, requests[2])[3]
  requests.append(dataclasses.replace(requests[2], stop_tokens=(255, likely)))
  several = [engine.submit(one) for one in requests]
  toys.run(engine, *several)
  for one, request in zip(several, requests):
    result, begin = one.result(), len(request.tokens)
    assert tuple(result.tokens) == plain(whole, request)
    assert [event.token for event in one.events] == result.tokens.tolist()
    assert result.text == ''.join(event.text for event in one.events)
    log_LV, logits_LC = whole([*request.tokens, *result.tokens])
    count = len(result.tokens) - (result.reason == 'stop_token')
    np.testing.assert_allclose(
      [event.scores for event in one.events][:count],
      sigmoid(logits_LC[begin : begin + count]),
      atol=1e-4,
    )
    places = np.arange(begin - 1, begin - 1 + len(result.tokens))
    np.testing.assert_allclose(
      result.log_probabilities, log_LV[places, result.tokens], atol=1e-3
    )
    np.testing.assert_allclose(
      result.prompt_scores, sigmoid(logits_LC[:begin].max(axis=0)), atol=1e-4
    )
  assert [one.reason for one in several] == ['length'] * 4 + ['stop_token']
  unguided = dataclasses.replace(requests[1], guided=PLAIN)
  assert plain(whole, unguided) != tuple(several[1].result().tokens)


def test_without_weights_it_is_the_search_of_a_decoder_alone(world):
  engine = world.engine()
  requests = [guided(length, length) for length in (3, 8, 30)]
  several = [engine.submit(one) for one in requests]
  toys.run(engine, *several)
  for one, request in zip(several, requests):
    best, result = world.searched(request), one.result()
    assert result.tokens.tolist() == list(best.tokens)
    np.testing.assert_array_equal(
      result.log_probabilities, np.float32(best.log_probabilities)
    )
    np.testing.assert_array_equal(
      [event.scores for event in one.events], best.probabilities
    )


OTHERS = [
  Request(toys.text(6, 30), 12, Sampling(seed=1)),
  Request(toys.text(19, 31), 9, Sampling(0)),
  Request(toys.text(30, 32), 7, Sampling(seed=3)),
]


@pytest.mark.parametrize('ahead', [False, True])
def test_what_runs_beside_has_the_bits_that_it_has_alone(world, ahead):
  """All calls have one shape, so that isolated rows do not move a bit."""
  engine = world.engine(batch_invariant=True, ahead=ahead)
  alone = [engine.submit(one) for one in OTHERS]
  toys.run(engine, *alone)
  several = [engine.submit(one) for one in OTHERS]
  several.insert(1, engine.submit(guided(11, 33, STEERED)))
  toys.run(engine, *several)
  search = several.pop(1)
  assert len(search.result().tokens) == DEPTH
  for one, wanted in zip(several, alone):
    assert toys.is_same(one.result(), wanted.result())


@pytest.fixture
def calls_of(world, monkeypatch):
  """Returns a list of the calls that run: 'step', 'search' and 'prefill'."""
  found = []
  world.engine()  # Makes them, if this is the first test.
  for name, holder, method in (
    ('step', world.rounds, 'step'),
    ('prefill', world.rounds, 'prefill'),
    ('search', world.calls, 'step'),
  ):
    whole = getattr(holder, method)

    def noted(*arguments, name=name, whole=whole):
      found.append(name)
      return whole(*arguments)

    monkeypatch.setattr(holder, method, noted)
  return found


def test_others_wait_for_one_call_more_however_many_searches(world, calls_of):
  engine = world.engine()
  talking = engine.submit(Request(toys.text(4, 40), 40, Sampling(seed=4)))
  engine.advance()
  searches = [engine.submit(guided(7, seed)) for seed in (41, 42, 43)]
  rounds = 0
  while any(one.reason is None for one in searches):
    calls_of.clear()
    shown = len(talking.events)
    engine.advance()
    rounds += 1
    # A token for whoever talks, in every round.
    assert len(talking.events) == shown + 1
    assert calls_of.count('step') == 1 and calls_of.count('search') <= 1
    # They take turns.
    steps = [one.search.step for one in searches if one.search]
    assert max(steps, default=0) - min(steps, default=0) <= 1
  assert rounds == 1 + 3 * DEPTH
  engine.cancel(talking)


def test_what_was_found_is_resumed(world):
  """By a next turn at its end, and by the same text, a token before it."""
  engine = world.engine()
  request = guided(22, 50, shared=10)
  one = engine.submit(request)
  toys.run(engine, one)
  answer = one.result().tokens.tolist()
  found = [*request.tokens, *answer]
  for added, reused in (([], len(found) - 1), (toys.text(5, 51), len(found))):
    turn = Request([*found, *added], 6, Sampling(0))
    resumed = engine.submit(turn)
    toys.run(engine, resumed)
    assert resumed.reused == reused
    fresh = world.engine(batch_invariant=True)
    whole = fresh.submit(turn)
    toys.run(fresh, whole)
    assert resumed.result().tokens.tolist() == whole.result().tokens.tolist()
    np.testing.assert_allclose(
      resumed.result().log_probabilities,
      whole.result().log_probabilities,
      atol=1e-4,
    )
    engine = world.engine()
    one = engine.submit(request)
    toys.run(engine, one)


def test_a_search_leaves_what_others_resume_as_it_is(world, calls_of):
  """It begins on shared pages, and moves tokens in its own."""
  engine = world.engine(batch_invariant=False)
  prompt = toys.text(27, 60)
  first = engine.submit(Request(prompt, 3, Sampling(0), shared=20))
  toys.run(engine, first)
  calls_of.clear()
  search = engine.submit(
    Request([*prompt, 7, 8], DEPTH, guided=STEERED, shared=20)
  )
  while search.search is None or search.search.step < 4:
    engine.advance()
  assert search.reused >= 26
  # While it runs, and after it: the points that it went on from.
  again = [engine.submit(Request(prompt, 3, Sampling(0), shared=20))]
  toys.run(engine, search)
  again.append(engine.submit(Request(prompt, 3, Sampling(0), shared=20)))
  toys.run(engine, *again)
  for one in again:
    assert one.reused == 26
    assert one.result().tokens.tolist() == first.result().tokens.tolist()
    np.testing.assert_allclose(
      one.result().log_probabilities,
      first.result().log_probabilities,
      atol=1e-5,
    )
  alone = world.engine(batch_invariant=True)
  wanted = alone.submit(search.request)
  toys.run(alone, wanted)
  assert search.result().tokens.tolist() == wanted.result().tokens.tolist()


@pytest.mark.parametrize(
  'rounds, ahead', [(0, False), (1, True), (3, False), (3, True), (6, True)]
)
def test_a_cancelled_search_frees_all_and_shows_nothing(world, rounds, ahead):
  engine = world.engine(ahead=ahead)
  one = engine.submit(guided(13, 70))
  other = engine.submit(OTHERS[0])
  for _ in range(rounds):
    engine.advance()
  engine.cancel(one)
  assert one.reason == 'cancelled' and one.row is None
  assert not one.events and not len(one.result().tokens)
  toys.run(engine, other)
  assert other.result().reason == 'length'
  # Its prompt is in the cache as far as it ran.
  again = engine.submit(guided(13, 70))
  toys.run(engine, again)
  assert again.reused == min(8 * max(rounds, 0), 12)
  assert again.reason == 'length'


def test_a_search_that_is_cut_off_leaves_no_point(world):
  """The slots of its ring hold beams."""
  engine = world.engine()
  one = engine.submit(guided(13, 70))
  while one.search is None or one.search.step < 4:
    engine.advance()
  world.forget()
  engine.cancel(one)
  assert len(world.decoder.account.tree) == 0


def test_a_search_stops_once_nothing_better_can_come(world, calls_of):
  engine = world.engine()
  likely = world.searched(guided(5, 1)).tokens[0]
  calls_of.clear()
  one = engine.submit(guided(5, 1, stop_tokens=[likely]))
  toys.run(engine, one)
  assert one.result().tokens.tolist() == [likely]
  assert calls_of.count('search') < DEPTH


@pytest.mark.parametrize(
  'what, error, message',
  [
    ('logits', request_lib.BadLogits, 'the logits of candid'),
    ('prompt', request_lib.BadLogits, 'step 0: the logits of candidate 0'),
    ('head', request_lib.BadLogits, 'step 3: the hook gave candidate 0'),
    ('other dimension', request_lib.BadLogits, 'is no number, so that nothing'),
    ('veto', beam.Vetoed, 'step 1: the hook vetoed all 6 candidates'),
    ('slots', beam_slots.Exhausted, 'sequence 1: local: 6 new tokens need'),
  ],
)
def test_a_search_that_fails_ends_alone(
  world, monkeypatch, what, error, message
):
  engine = world.engine(ahead=what in ('logits', 'head', 'slots'))
  guide = STEERED
  if what == 'other dimension':
    guide = dataclasses.replace(STEERED, weights={'loud': -3.0})
  if what == 'slots':
    monkeypatch.setattr(sequence_lib.Sequence, 'extra', 0)
    monkeypatch.setattr(rows_lib.Rows, '_entries_to_copy', lambda *_: [])
  fields = {'conversation': 1, 'owner': 'a'}
  one = engine.submit(guided(9, 82, guide, **fields))
  others = [engine.submit(x) for x in OTHERS[:2]]
  whole, calls = world.calls.step, []

  def bad(*arguments):
    calls.append(arguments)
    judged, expansions = whole(*arguments)
    if what == 'veto':
      score_C = np.full(CANDIDATES, -np.inf, np.float32)
      return judged._replace(score_C=score_C), expansions
    if len(calls) == 3 and what == 'logits':
      is_nan_C = np.ones(CANDIDATES, bool)
      return judged, expansions._replace(is_nan_C=is_nan_C)
    if len(calls) == 3 and what == 'head':
      score_C = np.full(CANDIDATES, np.nan, np.float32)
      return judged._replace(score_C=score_C), expansions
    if len(calls) == 3 and what == 'other dimension':
      probability_LC = np.array(judged.probability_LC)
      probability_LC[:, 0] = np.nan
      return judged._replace(probability_LC=probability_LC), expansions
    return judged, expansions

  monkeypatch.setattr(world.calls, 'step', bad)
  first = world.calls.first
  if what == 'prompt':
    monkeypatch.setattr(
      world.calls,
      'first',
      lambda *x: first(*x)._replace(is_nan_C=np.ones(1, bool)),
    )
  toys.run(engine, one, *others)
  assert one.reason == 'error' and not one.events
  assert type(one.error) is error and message in str(one.error)
  assert one.result().error is one.error
  monkeypatch.undo()
  # What gave no numbers is resumed by nobody; the others' points stay.
  again = engine.submit(guided(9, 82, **fields))
  toys.run(engine, again)
  assert again.reason == 'length'
  assert again.reused == (0 if error is request_lib.BadLogits else 8)
  fresh = world.engine()
  alone = [fresh.submit(x) for x in OTHERS[:2]]
  toys.run(fresh, *alone)
  for x, wanted in zip(others, alone):
    assert x.result().tokens.tolist() == wanted.result().tokens.tolist()


def test_a_stop_string_cuts_what_was_found(world):
  engine = world.engine()
  whole = [engine.submit(guided(5, seed)) for seed in range(100, 106)]
  toys.run(engine, *whole)
  request, tokens, at = next(
    (one.request, tokens, place)
    for one in whole
    for tokens in [one.result().tokens.tolist()]
    for place in range(1, DEPTH - 1)
    if 0 < tokens[place] < 128
  )
  string = chr(tokens[at])
  cut = engine.submit(dataclasses.replace(request, stop_strings=[string]))
  toys.run(engine, cut)
  result = cut.result()
  assert result.reason == 'stop_string' and string not in result.text
  assert result.tokens.tolist() == tokens[: tokens.index(ord(string)) + 1]


@pytest.mark.parametrize(
  'guide, options, message',
  [
    (Guide(0), {}, 'request.guided: width=0: must be at least 1'),
    (Guide(4, 3), {}, 'request.guided: candidates=3: must be at least width=4'),
    (Guide(3, 7), {}, 'a step of 7 candidates; the engine runs 6 at most'),
    (
      Guide(4, 6),
      {},
      'width=4, 6 candidates and max_tokens=8 take 34 slots beyond the text,'
      ' and the rows of the decoder have 27: open it with extra=34 or more',
    ),
    (Guide(1), {'candidates': 0}, 'candidates=1 or more, over a decoder with'),
    (Guide(1, weights={'mild': 1.0}), {}, "weights names 'mild': the head of"),
    (Guide(1, weights={'kind': 1.0}), {'head': None}, r'dimensions \[\]'),
    (Guide(1, weights={'kind': np.inf}), {}, r"\['kind'\]=inf: must be finite"),
    (Guide(1, weights={'kind': '1'}), {}, r"\['kind'\]='1': must be a number"),
    (Guide(True), {}, 'request.guided.width=True: must be an integer'),
    (3, {}, 'request.guided=3: must be a Guide'),
  ],
)
def test_a_guide_that_cannot_run_is_refused(world, guide, options, message):
  made = {'head': toys.head_of(), 'candidates': CANDIDATES} | options
  engine = engine_lib.Engine(world.decoder, chunk=CHUNK, **made)
  with pytest.raises((TypeError, ValueError), match=message):
    engine.submit(guided(5, 90, guide))
  assert engine.is_idle


def test_an_engine_that_cannot_search_is_refused(world):
  with pytest.raises(ValueError, match='candidates=-1: must be at least 0'):
    engine_lib.Engine(world.decoder, candidates=-1)
  reference = types.SimpleNamespace(
    network=types.SimpleNamespace(reference_length=8)
  )
  with pytest.raises(ValueError, match="needs a Decoder of mode='fast'"):
    searches.Searches(reference, CANDIDATES)


def test_guided_sequences_run_what_warming_up_compiled(world, monkeypatch):
  engine = world.engine()
  rounds, calls, decoder = world.rounds, world.calls, world.decoder
  seen = set()

  def noted(holder, name, of_run=False):
    whole = getattr(holder, name)

    def call(*arguments, **options):
      function = arguments[0] if of_run else name
      shapes = [
        (np.shape(x), np.asarray(x).dtype if isinstance(x, int) else x.dtype)
        for x in jax.tree.leaves(arguments[of_run:])
      ]
      seen.add((function, *shapes))
      return whole(*arguments, **options)

    monkeypatch.setattr(holder, name, call)

  noted(decoder, 'run', of_run=True)
  noted(calls, '_first')
  noted(rounds, '_first')
  noted(rounds, '_join')
  talking = engine.submit(Request(toys.text(4, 91), 12, Sampling(seed=4)))
  for _ in range(3):
    engine.advance()
  seen.clear()
  engine.warm()  # Leaves what runs as it is.
  warm = set(seen)
  guide = [engine.submit(guided(19, 92, STEERED)) for _ in range(2)]
  drawn = [engine.submit(one) for one in OTHERS]
  toys.run(engine, talking, *guide, *drawn)
  assert max(one.reused for one in guide) > 0
  assert seen == warm
  alone = world.engine()
  wanted = alone.submit(talking.request)
  toys.run(alone, wanted)
  assert talking.result().tokens.tolist() == wanted.result().tokens.tolist()
