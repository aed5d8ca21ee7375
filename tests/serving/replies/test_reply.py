"""Replies: what is shown and told of a text that a stop string cuts.

The engine's own sequences make the events; a plain search of the whole text is
the oracle.
"""

import asyncio
import collections
import random
import re
import types

import pytest

from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.engine import sequence as sequence_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import stop
from kaiju_jax.serving.replies import reasoning
from kaiju_jax.serving.replies import reply as reply_lib
from kaiju_jax.serving.safety import release

BYTES = tokenizer_lib.Bytes()
END = ord('!')  # A stop token.
LOW, MIDDLE = (0.1,), (0.5,)


class Stream:
  """Stands for `stream.AsyncStream`: gives events, some at once.

  Args:
    groups: events that come at once.
    result: of the sequence.
  """

  reused, prompt_scores = 0, None

  def __init__(self, groups, result):
    self._groups = collections.deque(map(collections.deque, groups))
    self._result = result

  def __aiter__(self):
    return self

  async def __anext__(self):
    if not self._groups:
      raise StopAsyncIteration
    event = self._groups[0].popleft()
    self.has_more = bool(self._groups[0])
    if not self.has_more:
      self._groups.popleft()
    return event

  @property
  def reason(self):
    return self._result.reason

  def result(self):
    return self._result

  def cancel(self):
    pass

  refuse = cancel


def watch(bounds):
  return types.SimpleNamespace(
    mode='unmoderated', release=lambda: release.Release(bounds, 3)
  )


def drawn(text, stops, rng):
  """Returns the events of a text, in groups, and the sequence's result."""
  one_request = request_lib.Request(
    [1], len(text.encode()), stop_tokens=(END,), stop_strings=stops
  )
  shown = stop.Text(BYTES, one_request.stop_tokens, one_request.stop_strings)
  one = sequence_lib.Sequence(0, one_request, [1], shown)
  groups, reason = [], None
  for token in text.encode():
    reason = one.update(sequence_lib.Drawn(token, -float(token)))
    scores = rng.choice([LOW, MIDDLE])
    event = one.events.popleft()._replace(scores=scores)
    if not groups or rng.random() < 0.5:
      groups.append([])
    groups[-1].append(event)
    if reason:
      break
  one.reason = reason
  return groups, one.result()


def expected(text, stops):
  """Returns what is shown of a text, and OpenAI's reason."""
  for end in range(1, len(text) + 1):
    if ord(text[end - 1]) == END:
      return text[: end - 1], 'stop'
    found = [one for one in stops if text[:end].endswith(one)]
    if found:
      return text[: end - max(map(len, found))], 'stop'
  return text, 'length'


def read(text, stops, rng, bounds=None):
  """Returns a reply that was read to its end, and its pieces."""
  reply = reply_lib.Reply(Stream(*drawn(text, stops, rng)), watch(bounds))
  return reply, asyncio.run(collected(reply))


def check(text, stops, rng, bounds=None):
  shown, finish = expected(text, stops)
  reply, pieces = read(text, stops, rng, bounds)
  assert (reply.text, reply.finish) == (shown, finish)
  assert ''.join(piece.text for piece in pieces) == shown
  told = [event for piece in pieces for event in piece.events]
  if told and told[-1].reason == 'stop_token':
    del told[-1]
  # Each token is a character: those of the text are told, and no others.
  assert bytes(event.token for event in told).decode() == shown
  assert [event.log_probability for event in told] == [
    -float(token) for token in shown.encode()
  ]
  # In time: no character is told before it is shown.
  seen = count = 0
  for piece in pieces:
    seen += len(piece.text)
    count += sum(event.token != END for event in piece.events)
    assert count <= seen
  whole = finish == 'length' or reply.tokens[-1] == END
  assert reply.drawn == (tuple(reply.tokens) if whole else None)


@pytest.mark.parametrize('bounds', [None, [release.Bound('a', 0.2, 0.9)]])
def test_a_reply_ends_before_its_stop_string(bounds):
  rng = random.Random(0)
  for text, stops in (
    ('tDtvl and more', ('tvl',)),
    ('tvtvtvl', ('tvtvl',)),
    ('ttvl', ('tvl', 'v')),
    ('tDtv', ('tvl',)),
    ('tDtv!', ('tvl',)),
    ('tvl', ('tvl',)),
    ('!', ('tvl',)),
  ):
    for _ in range(5):
      check(text, stops, rng, bounds)
  for _ in range(400):
    text = ''.join(rng.choices('ab!', (9, 9, 1), k=rng.randint(1, 12)))
    stops = tuple(
      ''.join(rng.choices('ab', k=rng.randint(1, 5)))
      for _ in range(rng.randint(0, 3))
    )
    check(text, stops, rng, bounds)


THOUGHT = chat.Thought(ord('<'), ord('>'))


def cut(text, is_inside):
  """Returns the reasoning and the answer of a text whose marks are < and >."""
  parts, begun = {True: [], False: []}, is_inside
  for piece in re.split('([<>])', text):
    if piece in ('<', '>'):
      is_inside, begun = piece == '<', True
    elif is_inside:
      parts[True].append(piece.strip())
    else:
      parts[False].append(piece.lstrip() if begun else piece)
  return tuple(''.join(parts[kind]) for kind in (True, False))


@pytest.mark.parametrize('seed', range(3))
def test_reasoning_is_cut_by_its_tokens_and_told_apart(seed):
  rng = random.Random(seed)
  for _ in range(300):
    text = ''.join(rng.choices('ab\n <<>>é東!', k=rng.randrange(1, 14)))
    stops = rng.choice([(), (), ('b ',), ('a>b',)])
    is_inside = rng.random() < 0.3
    bounds = rng.choice([None, [release.Bound('x', 0.3, 0.9)]])
    groups, result = drawn(text, stops, rng)
    made = reasoning.Cut(THOUGHT, BYTES, is_inside)
    kept = (THOUGHT.begin,) if is_inside else ()
    one = reply_lib.Reply(
      Stream(groups, result), watch(bounds), cut=made, kept=kept
    )
    pieces = asyncio.run(collected(one))
    shown, finish = expected(text, stops)
    wanted = cut(shown, is_inside)
    assert (one.reasoning, one.text, one.finish) == (*wanted, finish)
    assert ''.join(piece.text for piece in pieces) == wanted[1]
    assert ''.join(piece.reasoning for piece in pieces) == wanted[0]
    if stops:
      continue
    # What is told of tokens tells nothing of the reasoning.
    inside, count, told = is_inside, 0, []
    for byte in shown.encode():
      is_mark = byte in THOUGHT
      inside = byte == THOUGHT.begin if is_mark else inside
      count += is_mark or inside
      told += [] if is_mark or inside else [byte]
    said = [event.token for piece in pieces for event in piece.events]
    said = [token for token in said if token != END]
    letters = (b''.join(bytes(one).split()) for one in (told, said))
    assert next(letters) == next(letters)
    assert one.thought == count
    if one.drawn is not None and is_inside:
      assert one.drawn[0] == THOUGHT.begin


@pytest.mark.parametrize('seed', range(3))
def test_reasoning_in_two_parts_is_cut_as_at_once(seed):
  rng = random.Random(seed)
  for _ in range(300):
    text = ''.join(rng.choices('ab\n  <<>>é東', k=rng.randrange(2, 14)))
    is_inside, place = rng.random() < 0.3, rng.randrange(1, len(text))
    opened = [THOUGHT.begin] * is_inside
    begun = [*opened, *text[:place].encode()]
    found = ['', '']
    for part, made in (
      (text[:place], reasoning.Cut(THOUGHT, BYTES, is_inside)),
      (text[place:], reasoning.Cut(THOUGHT, BYTES, False, begun)),
    ):
      one = reply_lib.Reply(
        Stream(*drawn(part, (), rng)), watch(None), cut=made
      )
      asyncio.run(collected(one))
      found = [found[0] + one.reasoning, found[1] + one.text]
    assert tuple(found) == cut(text, is_inside), (text, place)


async def collected(one):
  return [piece async for piece in one]


def test_reasoning_is_held_back_and_ends_a_reply_as_text_does():
  groups, result = drawn('<abc>de', (), random.Random(0))
  (events,) = [[event for group in groups for event in group]]
  scores = [LOW, LOW, MIDDLE, (0.95,), LOW, LOW, LOW]
  groups = [[one._replace(scores=x)] for one, x in zip(events, scores)]
  made = reasoning.Cut(THOUGHT, BYTES, False)
  bounds = [release.Bound('x', 0.3, 0.9)]
  one = reply_lib.Reply(Stream(groups, result), watch(bounds), cut=made)
  pieces = asyncio.run(collected(one))
  assert one.finish == 'content_filter'
  # The b was held when the c ended the reply.
  assert (one.reasoning, one.text, one.thought) == ('a', '', 2)
  assert [piece.events for piece in pieces] == [[]] * len(pieces)
