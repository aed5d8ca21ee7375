"""A routed stream over replicas whose answers are written down."""

import asyncio
import dataclasses

import numpy as np
import pytest

from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.routing import replica as replica_lib
from kaiju_jax.serving.routing import router as router_lib
from tests.serving import world
from tests.serving.routing import fleet as fleet_lib


class Scripted:
  """A replica whose answers are written down.

  Args:
    name: its name.
    answers: of each `submit`: an error, or the events of a stream and the error
      that ends it, or the reason.

  Attributes:
    requests: those that came.
  """

  build = 'b1'

  def __init__(self, name, answers):
    self.name, self.is_alive = name, True
    self.answers, self.requests = list(answers), []
    self.opened = []

  async def submit(self, *requests):
    self.requests += requests
    answer = self.answers.pop(0)
    if callable(answer):
      answer = await answer()
    if isinstance(answer, Exception):
      raise answer
    self.opened.append(Answer(*answer))
    return self.opened[-1:]

  async def status(self):
    raise replica_lib.Lost('no account.')

  async def list_cached(self):
    return ()

  def stop(self):
    self.is_alive = False


class Answer:
  """A stream whose events are written down, and its end."""

  waited, reused, prompt_scores, rate, reason = 1.0, 2, (0.5,), 3.0, None

  def __init__(self, tokens, end):
    self.events, self.end = [event(*x) for x in tokens], end
    self.is_cancelled = False

  has_more = False

  async def __anext__(self):
    if self.events and not self.is_cancelled:
      return self.events.pop(0)
    if isinstance(self.end, Exception):
      raise self.end
    raise StopAsyncIteration

  def cancel(self):
    self.is_cancelled = True

  def result(self):
    reason = 'cancelled' if self.is_cancelled else self.end
    none = np.zeros(0, np.int32)
    return request_lib.Result(none, '', none, None, reason, None)


def event(token, reason=None):
  return request_lib.Event(token, chr(token), -token / 2, reason)


LOST = replica_lib.Lost('gone.')


def scripted(*replicas, **settings):
  settings = router_lib.Settings(policy='least_loaded', **settings)
  router = router_lib.Router(fleet_lib.SECRET, settings)
  for one in replicas:
    router.add(one)
    # The first takes the first request.
    list(router._replicas)[-1].charge(len(list(router._replicas)))
  return router


async def read(router, request):
  (stream,) = await router.submit(request)
  assert stream.reason is None
  with pytest.raises(ValueError, match='has not ended'):
    stream.result()
  tokens = [one.token async for one in stream]
  with pytest.raises(StopAsyncIteration):
    await anext(stream)
  return tokens, stream


async def test_a_lost_text_is_submitted_behind_what_was_given_out():
  one = Scripted('one', [([(97,), (98,)], LOST)])
  two = Scripted('two', [([(99,), (100, 'length')], 'length')])
  router = scripted(one, two)
  request = world.request(0, count=4, cache_salt='s', conversation='c')
  tokens, stream = await read(router, request)
  assert tokens == [97, 98, 99, 100]
  (again,) = two.requests
  assert again.drawn == [97, 98] and again.max_tokens == 4
  assert dataclasses.replace(again, drawn=()).__dict__ == request.__dict__
  result = stream.result()
  assert result.tokens.tolist() == [97, 98]  # Of the first: Answer has none.
  assert result.text == 'ab' and result.reason == 'length'
  assert result.log_probabilities.tolist() == [-48.5, -49]
  assert (stream.waited, stream.reused, stream.failovers) == (1.0, 2, 1)
  assert not router._streams


async def test_a_text_that_had_ended_needs_no_other_replica():
  one = Scripted('one', [([(97,), (98, 'stop_token')], LOST)])
  router = scripted(one, Scripted('two', []))
  tokens, stream = await read(router, world.request(0))
  assert tokens == [97, 98] and stream.reason == 'stop_token'
  assert stream.result().text == 'ab' and stream.failovers == 0
  # Its prompt's scores came with the result.
  one.answers = [([(97, 'length')], LOST)]
  scored = world.request(0, scores_prompt=True)
  with pytest.raises(replica_lib.Lost):
    await read(router, scored)


async def test_no_text_ends_more_replicas_than_it_may():
  """It may be the text itself that ends them, unless it goes on meanwhile."""
  answers = [([(97,)], LOST), ([(98,)], LOST), *[([], LOST)] * 9]
  replicas = [Scripted(f'{n}', [answer]) for n, answer in enumerate(answers)]
  router = scripted(*replicas, max_losses=2)
  with pytest.raises(replica_lib.Lost, match='3 replicas ended under it'):
    await read(router, world.request(0))
  # Two gave a token; the second loss is the first in succession.
  assert [len(x.requests) for x in replicas] == [1] * 4 + [0] * 7
  assert not router._streams


async def test_all_are_busy_with_the_least_wait():
  answers = [request_lib.Busy('one', 5.0), request_lib.Busy('two', 2.0)]
  answers += [request_lib.Busy('three', None)]
  names = 'one', 'two', 'three'
  replicas = [Scripted(name, [x]) for name, x in zip(names, answers)]
  router = scripted(*replicas)
  with pytest.raises(request_lib.Busy, match='two') as raised:
    await read(router, world.request(0))
  assert raised.value.seconds == 2.0
  assert all(len(one.requests) == 1 for one in replicas)
  for one in replicas:
    one.answers = [request_lib.Busy('full', None)]
  with pytest.raises(request_lib.Busy) as raised:
    await read(router, world.request(0))
  assert raised.value.seconds is None


async def test_a_begun_text_waits_while_all_are_busy():
  one = Scripted('one', [([(97,)], LOST), request_lib.Busy('full', 0.01)])
  full = [request_lib.Busy('full', 0.01)] * 3
  two = Scripted('two', [*full, ([(98, 'length')], 'length')])
  one.answers += full
  router = scripted(one, two)
  tokens, stream = await read(router, world.request(0))
  assert tokens == [97, 98] and stream.failovers == 1
  two.answers, one.answers = full * 99, [([(97,)], LOST), *full * 99]
  impatient = scripted(one, two, busy_timeout_s=0.05)
  with pytest.raises(replica_lib.Lost, match='cannot go on: full'):
    await read(impatient, world.request(0))


async def test_what_a_replica_refuses_of_a_rest_is_a_loss():
  one = Scripted('one', [([(97,)], LOST)])
  two = Scripted('two', [ValueError('request.drawn: too long')])
  with pytest.raises(replica_lib.Lost, match=r'request\.drawn: too long'):
    await read(scripted(one, two), world.request(0))


@pytest.mark.parametrize('way', ['cancel', 'leave'])
async def test_a_client_that_leaves_while_its_text_moves_leaves_nothing(way):
  """Its new stream opens after that, if it opens at all."""
  reached, go = asyncio.Event(), asyncio.Event()

  async def slow():
    reached.set()
    await go.wait()
    return [(98,), (99,)], 'length'

  one = Scripted('one', [([(97,)], LOST)])
  two = Scripted('two', [slow])
  router = scripted(one, two)
  (stream,) = await router.submit(world.request(0))
  assert (await anext(stream)).token == 97
  reading = asyncio.create_task(anext(stream, None))
  await reached.wait()
  if way == 'leave':
    reading.cancel()
    await asyncio.wait([reading])
  stream.cancel()
  go.set()
  if way == 'cancel':
    assert await reading is None
    assert two.opened[0].is_cancelled
    assert stream.reason == 'cancelled'
    assert stream.result().tokens.tolist() == [97]
  assert not router._streams
  assert not any(x.charged - n - 1 for n, x in enumerate(router._replicas))


async def test_a_client_that_leaves_while_all_are_busy_waits_no_longer():
  full = request_lib.Busy('full', 100.0)
  one = Scripted('one', [([(97,)], LOST), full])
  two = Scripted('two', [full])
  router = scripted(one, two)
  (stream,) = await router.submit(world.request(0))
  await anext(stream)
  reading = asyncio.create_task(anext(stream, None))
  while two.answers:
    await asyncio.sleep(0)
  stream.cancel()
  assert await asyncio.wait_for(reading, 0.5) is None
  assert stream.reason == 'cancelled' and not router._streams


@pytest.mark.parametrize('error', [request_lib.Late, request_lib.BadLogits])
async def test_a_sequence_s_own_error_is_the_clients(error):
  one = Scripted('one', [([], error('why'))])
  router = scripted(one, Scripted('two', []))
  (stream,) = await router.submit(world.request(0))
  with pytest.raises(error):
    await anext(stream)
  assert not router._streams and not next(iter(router._replicas)).charged - 1


async def test_loads_are_charged_until_the_first_token_and_the_end():
  one = Scripted('one', [([(97,), (98, 'length')], 'length')])
  router = scripted(one)
  (place,) = router._replicas
  (stream,) = await router.submit(world.request(0, prompt=9))
  loads = [place.charged - 1]
  async for _ in stream:
    loads.append(place.charged - 1)
  loads.append(place.charged - 1)
  assert loads == [10, 1, 1, 0]
