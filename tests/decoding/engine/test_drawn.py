"""A text that another engine began goes on as if it had never changed engines.

In the reference mode each event has the bits of the uninterrupted text's, so
that a text is cut behind every token and held against the whole one.
"""

import dataclasses

import numpy as np
import pytest

from kaiju_jax.data import tokenizer
from kaiju_jax.decoding.engine import admission
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.decoding.engine import pacing
from kaiju_jax.decoding.engine import phases
from kaiju_jax.decoding.engine import sequence as sequence_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.decoding.requests import stop
from tests.decoding import fake_engine
from tests.decoding import toys
from tests.serving import world

Request, Sampling = request_lib.Request, sampling.Sampling
CONFIG = toys.small()
LENGTH, CHUNK = 40, 8


@pytest.fixture(scope='module')
def plain(judged):
  return generator_lib.Generator(
    judged._decoder, tokenizer.Bytes(), chunk=CHUNK
  )


def run(generator, request):
  stream = generator.stream(request)
  return list(stream), stream.result


def forget(generator):
  generator._decoder.account.tree.clear()


def cut_everywhere(generator, request, keeps=False):
  """Holds a text's rest behind each token against the uninterrupted one.

  With `keeps` the engine's cache has the text's points; otherwise none.
  """
  forget(generator)
  events, whole = run(generator, request)
  assert len(events) > 3
  for at in range(1, len(events)):
    if not keeps:
      forget(generator)
    tokens = [event.token for event in events[:at]]
    again = dataclasses.replace(request, drawn=tokens)
    rest, result = run(generator, again)
    assert rest == events[at:], at
    assert result.tokens.tolist() == whole.tokens[at:].tolist()
    shown = ''.join(event.text for event in events[:at])
    assert shown + result.text == whole.text
    np.testing.assert_array_equal(
      result.log_probabilities, whole.log_probabilities[at:]
    )
    assert result.reason == whole.reason
    assert result.prompt_scores == whole.prompt_scores
    assert result.reused <= len(request.tokens)
  return events, whole


SAMPLINGS = [
  # It draws that token until its count outweighs the bias.
  Sampling(0, frequency_penalty=1.0, logit_bias={97: 4.0}),
  Sampling(seed=5),
  Sampling(0.7, top_k=9, seed=6, repetition_penalty=3.0),
  Sampling(0, repetition_penalty=2.5, dry_multiplier=2, dry_allowed_length=1),
]


@pytest.mark.parametrize(
  'number, keeps', [(0, False), (1, False), (2, False), (2, True), (3, True)]
)
def test_each_rest_has_the_bits_of_the_whole(generator, number, keeps):
  prompt = toys.text((3, 8, 17, 21)[number], number)
  request = Request(prompt, 10, SAMPLINGS[number])
  _, whole = cut_everywhere(generator, request, keeps)
  assert whole.reason == 'length' and len(whole.tokens) == 10
  assert whole.prompt_scores is not None


def test_without_a_head_too(plain):
  events, _ = cut_everywhere(plain, Request(toys.text(6, 9), 9, SAMPLINGS[1]))
  assert events[0].scores is None


def stopped_by_string(generator):
  """Returns a request that ends at a string of several tokens' text."""
  for seed in range(30, 60):
    request = Request(toys.text(7, seed), 14, Sampling(seed=seed))
    found = run(generator, request)[1].text
    if len(found) == 14:
      continue
    at = next(
      (n for n in range(3, len(found) - 4) if '\ufffd' not in found[n : n + 4]),
      None,
    )
    if at is not None and found.index(found[at : at + 4]) == at:
      return dataclasses.replace(request, stop_strings=(found[at : at + 4],))
  raise AssertionError('no text has four characters in a row')


@pytest.mark.parametrize('which', ['generator', 'plain'])
def test_a_stop_string_may_lie_across_the_cut(which, request):
  engine = request.getfixturevalue(which)
  events, whole = cut_everywhere(engine, stopped_by_string(engine))
  assert whole.reason == 'stop_string'
  held = [n for n, event in enumerate(events[:-1]) if event.held]
  assert len(held) >= 2  # So that some cuts lie within the string.


def test_a_stop_token_comes_with_the_scores_before_it(generator):
  request = Request(toys.text(5, 70), 12, Sampling(seed=70))
  drawn = run(generator, request)[1].tokens.tolist()
  token = next(x for x in drawn[4:] if drawn.index(x) >= 4)
  stopped = dataclasses.replace(request, stop_tokens=(token,))
  events, whole = cut_everywhere(generator, stopped)
  assert whole.reason == 'stop_token'
  assert events[-1].scores == events[-2].scores is not None


def test_a_scored_prompt_is_scored_whole_and_no_further(generator):
  request = Request(toys.text(19, 71), 6, Sampling(seed=71), scores_prompt=True)
  forget(generator)
  events, whole = run(generator, request)
  for at in (1, 5):
    tokens = [event.token for event in events[:at]]
    rest, result = run(
      generator, dataclasses.replace(request, drawn=np.array(tokens))
    )
    assert rest == events[at:]
    np.testing.assert_array_equal(
      result.prompt_log_probabilities, whole.prompt_log_probabilities
    )
    assert len(result.prompt_log_probabilities) == 18


def test_drawn_tokens_are_judged_anew(generator, monkeypatch):
  """A head that gives one of them no number lets nothing more be shown."""
  forget(generator)
  request = Request(toys.text(5, 80), 9, Sampling(seed=80))
  events, _ = run(generator, request)
  forget(generator)
  tokens = [event.token for event in events[:4]]
  engine, judged = generator.engine, []
  prefill = engine.rounds.prefill

  def bad(chunks, shape):
    ran, (chunk,) = prefill(chunks, shape), chunks
    judged_BLC, place = np.array(ran.judged_BLC), 6 - len(judged)
    judged.extend(chunk.tokens_L.tolist())
    if 0 <= place < len(chunk.tokens_L):
      judged_BLC[0, place] = np.nan  # Of the second drawn one.
    return ran._replace(judged_BLC=judged_BLC)

  monkeypatch.setattr(engine.rounds, 'prefill', bad)
  one = engine.submit(dataclasses.replace(request, drawn=tokens))
  toys.run(engine, one)
  assert judged == [*request.tokens, *tokens]
  assert one.reason == 'error' and not one.events
  assert isinstance(one.error, request_lib.BadLogits)


def test_a_prompt_keeps_its_point_where_its_rest_was_drawn_elsewhere(generator):
  """A swipe of it resumes the prompt, not the answer that came with it."""
  forget(generator)
  request = Request(toys.text(14, 77), 8, Sampling(0), conversation='c')
  run(generator, dataclasses.replace(request, drawn=toys.text(5, 78)))
  (_, ours), *_ = generator.engine.recorder._latest.items()
  lengths = sorted(point.length for point in ours.points)
  assert lengths == [14, 14 + 8]
  swipe = dataclasses.replace(request, sampling=Sampling(seed=3))
  assert run(generator, swipe)[1].reused == 13


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'drawn': [1, 999]}, r'request.drawn\[1\]=999: a token is 0…255'),
    ({'drawn': [[1]]}, r'request.drawn is int64\[1, 1\]'),
    ({'drawn': [1.5]}, r'request.drawn is float64'),
    ({'drawn': [1] * 4}, r'drawn has 4 tokens: .* fewer than max_tokens=4'),
    ({'drawn': [1, 7], 'stop_tokens': (7,)}, 'drawn holds 7: .* no stop token'),
    (
      {'drawn': [97, 98], 'stop_strings': ('ab',)},
      'drawn: its text ends by stop_string',
    ),
    (
      {'drawn': [97, 98, 99], 'stop_strings': ('ab',)},
      'the sequence ended before, by stop_string',
    ),
    ({'drawn': [1], 'guided': request_lib.Guide(2)}, 'must be empty with'),
  ],
)
def test_drawn_tokens_that_cannot_be_are_refused(generator, changes, message):
  request = dataclasses.replace(Request(toys.text(5, 79), 4), **changes)
  with pytest.raises((TypeError, ValueError), match=message):
    generator.engine.submit(request)
  assert generator.engine.is_idle


def test_a_begun_text_is_admitted_and_waits_without_a_deadline():
  """It was admitted by the engine that began it."""
  now = [0.0]
  engine = world.Engine(
    rows=1, limits=admission.Limits(queue=1), clock=lambda: now[0]
  )
  running = engine.submit(world.request(0))
  engine.advance()
  waits = engine.submit(world.request(1))
  with pytest.raises(request_lib.Busy):
    engine.submit(world.request(2))
  begun = dataclasses.replace(world.request(3), drawn=[5], deadline=1.0)
  one = engine.submit(begun)
  now[0] = 100.0
  while not engine.is_idle:
    engine.advance()
  assert [x.reason for x in (running, waits, one)] == ['length'] * 3
  assert len(one.events) == begun.max_tokens - 1
  assert fake_engine.nothing_is_left(engine)


def test_a_reader_is_not_taken_for_one_of_tokens_that_came_before():
  request = Request([1] * 5, 40, drawn=[2] * 30)
  one = sequence_lib.Sequence(1, request, np.ones(5, np.int32), stop.Text(None))
  one.enter(phases.Phase.PREFILLING)
  one.enter(phases.Phase.DRAWING)
  paced = pacing.Pacing(pacing.Pace(8, 30))
  assert not paced.find_early([one], 0.0)
