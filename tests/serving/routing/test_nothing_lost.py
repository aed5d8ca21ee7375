"""Nothing is lost: replicas are killed, and no text shows it.

Each at a random round, before its tokens are given out or after they were drawn
and lost. What a client reads is held against the undisturbed text.
"""

import asyncio
import dataclasses

import numpy as np
import pytest

from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from tests.serving.routing import fleet as fleet_lib

Request, Sampling = request_lib.Request, sampling.Sampling
KILLS = 8


@pytest.fixture(scope='module')
def engines():
  return fleet_lib.make_engines(3)


def requests():
  """Returns texts of all kinds, which share some of their prompts."""
  found = []
  for seed in range(6):
    prompt = fleet_lib.text((3, 9, 21)[seed % 3], seed % 4)
    settings = (
      Sampling(seed=seed),
      Sampling(0),
      Sampling(0.8, top_k=30, seed=seed, repetition_penalty=2.0),
    )[seed % 3]
    owner = f'owner {seed % 2}'
    talk = None if seed % 3 == 0 else f'talk {seed}'
    found.append(
      Request(prompt, 12, settings, owner=owner, conversation=talk, shared=3)
    )
  return found


def undisturbed(engine, request):
  """Returns the events and the result of a text that one engine draws."""
  engine.clear()
  one = engine.submit(request)
  while one.reason is None:
    engine.advance()
  engine.clear()
  return list(one.events), one.result()


@pytest.fixture(scope='module')
def wanted(engines):
  """Returns requests with what each must give; some end at a stop string."""
  found = []
  for number, request in enumerate(requests()):
    events, _ = undisturbed(engines[0], request)
    if number in (1, 4):
      text = ''.join(event.text for event in events)
      request = dataclasses.replace(request, stop_strings=(text[6:9],))
    if number == 2:
      stop = (events[9].token,)
      request = dataclasses.replace(request, stop_tokens=stop)
    found.append((request, *undisturbed(engines[0], request)))
  return found


def check(found, want):
  (events, result), (_, want_events, want_result) = found, want
  assert events == want_events
  assert result.tokens.tolist() == want_result.tokens.tolist()
  assert result.text == want_result.text
  assert result.reason == want_result.reason
  assert result.prompt_scores == want_result.prompt_scores
  np.testing.assert_array_equal(
    result.log_probabilities, want_result.log_probabilities
  )


def test_kills_at_random_tokens_lose_nothing(engines, wanted):
  rng = np.random.default_rng(27)

  async def main(fleet):
    kills = moves = 0
    while kills < KILLS:
      chosen = rng.permutation(len(wanted))[: rng.integers(2, 6)]
      victims = rng.permutation(3)[: rng.integers(1, 3)]
      for number in victims:
        engine = engines[number]
        engine.loses = bool(rng.integers(2))
        engine.fuse = int(rng.integers(0, 14))
      found = await asyncio.gather(
        *(ask(fleet, wanted[number][0]) for number in chosen)
      )
      for one, number in zip(found, chosen):
        check(one, wanted[number])
      await fleet.nothing_is_left()
      for engine in engines:
        engine.fuse = None
      dead = sum(not one.is_alive for one in fleet.replicas.values())
      kills, moves = kills + dead, fleet.router.failovers
      fleet.revive()
    return kills, moves

  async def ask(fleet, request):
    (stream,) = await fleet.router.submit(request)
    return await fleet_lib.read(stream)

  with fleet_lib.running(engines) as fleet:
    kills, moves = asyncio.run(main(fleet))
  assert kills >= KILLS and moves >= KILLS / 2
