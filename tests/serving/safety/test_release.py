"""The hold-back: no planted violation comes out, and nothing else is lost."""

import itertools
import math

import numpy as np
import pytest

from kaiju_jax.serving.safety import release
from tests.serving import planted

LOW, MIDDLE, HIGH = planted.LOW, planted.MIDDLE, planted.HIGH
BOUND = release.Bound('zorb', 0.1, 0.8)
HOLDS = range(13)


def run(pieces, scores, hold, bounds=(BOUND,)):
  """Returns (text after each token, whether it ended), and checks counts."""
  one = release.Release(bounds, hold)
  shown, tokens, after = '', 0, []
  for piece, score in zip(pieces, scores):
    released = one.push(piece, score)
    shown += released.text
    tokens += released.tokens
    after.append(shown)
    assert shown == ''.join(pieces[:tokens])
    assert one.shown == len(shown)
    if released.ended:
      assert released == ('', 0, True)
      assert one.finish().text == '' and one.held == 0
      return after, True
    assert one.held == len(after) - tokens <= hold
  shown += one.finish().text
  return [*after, shown], False


def chunkings(text):
  """Yields a text's every division into tokens."""
  for cuts in itertools.product((False, True), repeat=len(text) - 1):
    places = [0, *(n + 1 for n, cut in enumerate(cuts) if cut), len(text)]
    yield [text[a:b] for a, b in itertools.pairwise(places)]


def span(pieces, begin, end):
  """Returns how many tokens after that of `begin` the text to `end` ends."""
  ends = list(itertools.accumulate(map(len, pieces)))
  first = next(n for n, x in enumerate(ends) if x > begin)
  return next(n for n, x in enumerate(ends) if x >= end) - first


@pytest.mark.parametrize('hold', HOLDS)
def test_a_marker_never_appears_in_any_chunking(hold):
  """Nor does a character of it where the hold-back spans its tokens."""
  marker, text = 'zorb', 'a zzorb b'
  begin, end = text.index(marker), text.index(marker) + len(marker)
  for pieces in chunkings(text):
    scores = planted.head(pieces, [marker])
    after, ended = run(pieces, scores, hold)
    assert ended and marker not in after[-1]
    if span(pieces, begin, end) <= hold:
      assert len(after[-1]) <= begin


@pytest.mark.parametrize('hold', HOLDS)
def test_long_texts_with_and_without_a_violation(hold):
  rng = np.random.default_rng(hold)
  words = ['zor', 'bifex', 'zorbife', 'quam', 'lith', ' ', 'a cat', '\n', 'é']
  markers = [planted.ZORB, planted.QUAM]
  bounds = [release.Bound(name, 0.1, 0.8) for name in markers]
  violating = 0
  for _ in range(300):
    text = ''.join(rng.choice(words, 30))
    pieces = []
    while text:
      size = int(rng.integers(0, 6))
      pieces.append(text[:size])
      text = text[size:]
    whole = ''.join(pieces)
    after, ended = run(pieces, planted.head(pieces, markers), hold, bounds)
    found = [whole.find(marker) for marker in markers if marker in whole]
    violating += bool(found)
    assert ended == bool(found)
    assert not any(marker in after[-1] for marker in markers)
    if not found:
      assert after[-1] == whole
    else:
      end, begin = min((x + 8, x) for x in found)
      if span(pieces, begin, end) <= hold:
        assert len(after[-1]) <= begin
  assert 50 < violating < 250


@pytest.mark.parametrize('hold', HOLDS)
def test_no_token_is_later_than_the_hold(hold):
  """Whatever middle scores there are; and low ones are not late at all."""
  rng = np.random.default_rng(hold)
  pieces = list('abcdefghijklmnopqrstuvwxyz')
  for _ in range(100):
    scores = rng.choice([LOW, MIDDLE], len(pieces), p=(0.2, 0.8))[:, None]
    after, ended = run(pieces, scores, hold)
    assert not ended and after[-1] == ''.join(pieces)
    for n, shown in enumerate(after[:-1]):
      assert len(shown) >= n + 1 - hold
      if scores[n] == LOW:
        assert len(shown) == n + 1


def test_low_middle_high_are_drawn():
  """Tokens a…i with hold 2; after each, what is shown."""
  for scores, wanted in (
    ('lllm', ['a', 'ab', 'abc', 'abc', 'abcd']),
    ('mmmm', ['', '', 'a', 'ab', 'abcd']),
    ('mmlm', ['', '', 'abc', 'abc', 'abcd']),
    ('mmmh', ['', '', 'a', 'a']),
    ('lmh', ['a', 'a', 'a']),
    ('lmmh', ['a', 'a', 'a', 'a']),
    ('h', ['']),
  ):
    each = [({'l': LOW, 'm': MIDDLE, 'h': HIGH}[x],) for x in scores]
    after, ended = run('abcdefghi'[: len(scores)], each, 2)
    assert after == wanted and ended == scores.endswith('h')


def test_thresholds_themselves():
  """At `low` it is middle, at `high` high."""
  one = release.Release([BOUND], 4)
  assert one.push('a', [math.nextafter(0.1, 0)]).text == 'a'
  assert one.push('b', [0.1]).text == ''
  assert one.push('c', [math.nextafter(0.8, 0)]).text == ''
  assert one.push('d', [0.8]).ended
  assert one.violation == ('zorb', 0.8, 3)


def test_every_dimension_counts():
  bounds = [BOUND, release.Bound('quam', 0.2, 0.9)]
  assert run('ab', [(0.05, 0.15)] * 2, 4, bounds)[0] == ['a', 'ab', 'ab']
  assert run('ab', [(0.05, 0.25)] * 2, 4, bounds)[0] == ['', '', 'ab']
  assert run('ab', [(0.05, 0.95)] * 2, 4, bounds) == ([''], True)
  assert run('ab', [(0.85, 0.05)] * 2, 4, bounds) == ([''], True)


@pytest.mark.parametrize('scores', [None, [math.nan], [math.inf]])
def test_scores_that_are_missing_end_the_reply(scores):
  one = release.Release([BOUND])
  assert one.push('a', scores) == ('', 0, True)
  assert one.violation is not None


def test_what_stops_is_told_once_with_all_its_text():
  told = []
  one = release.Release([BOUND], 8, lambda x: told.append(x.text))
  for piece, score in zip('abcd', (LOW, MIDDLE, MIDDLE, HIGH)):
    one.push(piece, [score])
  assert told == ['abcd'] and one.shown == 1
  with pytest.raises(RuntimeError, match='has ended'):
    one.push('e', [LOW])


def test_unmoderated_text_goes_through():
  one = release.Release(None)
  assert one.push('zorbifex', None) == ('zorbifex', 1, False)
  assert one.push('zorbifex', [1.0]) == ('zorbifex', 1, False)
  assert one.finish() == ('', 0, False) and one.violation is None


def test_refusals():
  with pytest.raises(ValueError, match=r'hold=-1'):
    release.Release([BOUND], -1)
  with pytest.raises(ValueError, match='at least one dimension'):
    release.Release([])
  with pytest.raises(ValueError, match='low must not be above high'):
    release.Release([release.Bound('a', 0.9, 0.8)])
  with pytest.raises(ValueError, match='2 scores: must be one for each'):
    release.Release([BOUND]).push('a', [0.1, 0.2])
