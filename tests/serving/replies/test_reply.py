"""Replies: what is shown and told of a text that a stop string cuts.

The engine's own sequences make the events; a plain search of the whole text is
the oracle.
"""

import asyncio
import collections
import random
import types

import pytest

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.engine import sequence as sequence_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import stop
from kaiju_jax.serving.replies import reply as reply_lib
from kaiju_jax.serving.safety import release

BYTES = tokenizer_lib.Bytes()
END = ord('!')  # A stop token.
LOW, MIDDLE = (0.1,), (0.5,)


class Stream:
  """Stands for `worker.AsyncStream`: gives events, some at once.

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


def watch(bounds):
  return types.SimpleNamespace(
    mode='unmoderated', release=lambda: release.Release(bounds, 3)
  )


def drawn(text, stops, rng):
  """Returns the events of a text, in groups, and the sequence's result."""
  asked = request_lib.Request(
    [1], len(text), stop_tokens=(END,), stop_strings=stops
  )
  shown = stop.Text(BYTES, asked.stop_tokens, asked.stop_strings)
  one = sequence_lib.Sequence(0, asked, [1], shown)
  one.join(0, 0, 0.0)
  one.begin()
  groups, reason = [], None
  for token in text.encode():
    reason = one.take(token, -float(token))
    scores = rng.choice([LOW, MIDDLE])
    event = one.events.popleft()._replace(scores=scores)
    if not groups or rng.random() < 0.5:
      groups.append([])
    groups[-1].append(event)
    if reason:
      break
  one.end(reason)
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

  async def main():
    return [piece async for piece in reply]

  return reply, asyncio.run(main())


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
