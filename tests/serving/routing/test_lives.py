"""Any life of a fleet: texts of all kinds, clients that leave, kills, drains.

What each client reads follows from its request alone (`fake_device`), whatever
happens to the replicas: tokens, the head's scores, the prompt's verdict and
log-probabilities. At the end nothing is taken, and no page is held.
"""

import asyncio
import dataclasses

import numpy as np
import pytest

from kaiju_jax.decoding.engine import searches
from kaiju_jax.decoding.requests import request as request_lib
from tests.decoding import fake_device
from tests.serving import world
from tests.serving.routing import fleet as fleet_lib

CLIENTS, WAVES = 16, 25


@pytest.fixture
def make(monkeypatch):
  monkeypatch.setattr(
    searches,
    'Searches',
    lambda decoder, _, judge, is_recorded: fake_device.Searches(
      decoder, None, judge is not None, is_recorded
    ),
  )
  fleets = []

  def start(count, **options):
    engines = [fleet_lib.Light(**options) for _ in range(count)]
    fleets.append(fleet_lib.Fleet(engines))
    return fleets[-1]

  yield start
  for fleet in fleets:
    fleet.stop()


def draw_request(rng):
  """Returns a request of any kind, which may share its prompt with others."""
  seed = int(rng.integers(200))
  kind = rng.integers(5)
  prompt = int(rng.integers(1, 30))
  owner = f'owner {rng.integers(3)}'
  request = world.request(
    seed % 7, prompt, int(rng.integers(1, 16)), owner=owner
  )
  changes = {'priority': int(rng.integers(3))}
  if kind < 2:
    changes['conversation'] = f'talk {rng.integers(6)}'
    changes['cache_salt'] = f'salt {rng.integers(2)}'
    changes['shared'] = min(4, prompt)
  elif kind == 2:
    changes['guided'] = request_lib.Guide(1)
  elif kind == 3:
    changes['scores_prompt'] = True
  else:
    tokens, _ = fake_device.expected(request)
    changes['stop_tokens'] = (tokens[-1], tokens[len(tokens) // 2])
  return dataclasses.replace(request, **changes)


def check(request, events, result):
  """Holds what a client read to its end against what its request says."""
  tokens, reason = fake_device.expected(request)
  assert [event.token for event in events] == tokens
  assert result.tokens.tolist() == tokens and result.reason == reason
  assert result.log_probabilities.tolist() == [-float(x) for x in tokens]
  check_judged(request, events)
  judged, text = [], 0
  for token in request.tokens:
    text = fake_device.appended(text, [token])
    judged.append(fake_device.scores(text))
  assert result.prompt_scores == tuple(np.max(judged, axis=0))
  if request.scores_prompt:
    given = result.prompt_log_probabilities
    assert given.tolist() == [-float(x) for x in request.tokens[1:]]


def check_judged(request, events):
  """Each token came with the head's scores of the text up to it."""
  text, scores = fake_device.appended(0, request.tokens), None
  for event in events:
    text = fake_device.appended(text, [event.token])
    if event.reason != 'stop_token':
      scores = fake_device.scores(text)
    elif request.guided is not None:
      continue
    assert event.scores == scores


async def live(fleet, request, leaves):
  """Reads a text; the client leaves after so many tokens, or at a moment."""
  (stream,) = await fleet.router.submit(request)
  events = []
  try:
    async for event in stream:
      events.append(event)
      if len(events) == leaves:
        stream.cancel()
        return events, None
  except asyncio.CancelledError:
    stream.cancel()
    raise
  return events, stream.result()


@pytest.mark.parametrize('ahead', [False, True])
def test_any_life_of_a_fleet_gives_each_client_its_text(make, ahead):
  fleet = make(3, is_judged=True, ahead=ahead, pages=60)
  rng = np.random.default_rng(4 + ahead)

  async def main():
    dead = whole = left = 0
    for wave in range(WAVES):
      for number in rng.permutation(3)[: rng.integers(3)]:
        engine = fleet.engines[number]
        engine.loses = bool(rng.integers(2))
        engine.fuse = int(rng.integers(0, 16))
      requests = [draw_request(rng) for _ in range(CLIENTS)]
      tasks = [
        asyncio.create_task(live(fleet, x, rng.choice([0, 0, 0, 1, 4])))
        for x in requests
      ]
      if wave % 5 == 4:
        number = int(rng.integers(3))
        await asyncio.sleep(0)
        await fleet.router.drain_one(f'r{number}', 0.0)
      gone = tasks[int(rng.integers(CLIENTS))]
      asyncio.get_running_loop().call_later(rng.uniform(0, 0.03), gone.cancel)
      found = await asyncio.gather(*tasks, return_exceptions=True)
      for request, one in zip(requests, found):
        if isinstance(one, asyncio.CancelledError):
          left += 1
          continue
        if isinstance(one, Exception):
          raise one
        events, result = one
        if result is None:
          left += 1
          tokens, _ = fake_device.expected(request)
          assert [x.token for x in events] == tokens[: len(events)]
          check_judged(request, events)
        else:
          whole += 1
          check(request, events, result)
      await fleet.nothing_is_left()
      dead += sum(not one.is_alive for one in fleet.replicas.values())
      renew(fleet)
    return dead, whole, left, fleet.router.failovers

  dead, whole, left, moves = fleet_lib.run(main())
  assert dead > 8 and moves > 20 and left > 50 and whole > 150
  for number, engine in enumerate(fleet.engines):
    fleet.replicas[number].stop()
    engine.clear()
    assert fake_device.is_empty(engine.decoder)


def renew(fleet):
  """Puts new replicas in the place of dead and of drained ones."""
  fleet.revive()
  for engine in fleet.engines:
    engine.fuse = None
  for number, one in list(fleet.replicas.items()):
    if fleet.router._replicas.find(one.name).is_closing:
      fleet.router.remove(one.name).stop()
      fleet.start(number)
