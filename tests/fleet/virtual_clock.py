"""The real engine on a clock that its rounds advance, without a model."""

import numpy as np

from kaiju_jax.decoding.engine import compiled
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.fleet import simulator
from tests.decoding import fake_device

# Requests of a burst, and the seconds in which their answers end.
BURST, REST = 24, 4.0


class Rounds(fake_device.Rounds):
  """Counts what the calls of a round would take."""

  def __init__(self, decoder, chunk, law, shapes):
    super().__init__(decoder, chunk)
    self.shapes, self._law, self.seconds = list(shapes), law, 0.0

  def prefill(self, chunks, shape):
    law, lengths = self._law, self._decoder.lengths
    self.seconds += law.chunk + law.token * shape[0] * shape[1]
    self.seconds += law.attended * sum(
      len(chunk.tokens_L) * lengths[chunk.row] for chunk in chunks
    )
    return super().prefill(chunks, shape)

  def step(self, rows):
    law, lengths = self._law, self._decoder.lengths
    self.seconds += law.row * len(rows)
    self.seconds += law.context * sum(lengths[row] for row in rows)
    return super().step(rows)


def requests_of(seed, count, sessions, characters, prefix, gap, swipes=0.2):
  """Draws requests of conversations; returns a trace and the engine's requests.

  The engine's draws are known beforehand, so that the next prompt has them.
  Requests come in bursts, in each at most one of a session: the engine lets an
  owner's second request wait behind others (fair shares), the simulator does
  not.
  """
  rng = np.random.default_rng(seed)
  tokens = [
    rng.integers(1, 250, int(rng.integers(*prefix))) for _ in range(characters)
  ]
  texts, columns, asked = {}, [], []
  seconds = np.cumsum(rng.exponential(gap, count))
  seconds += np.arange(count) // BURST * REST
  for number, now in enumerate(seconds):
    if number % BURST == 0:
      order = rng.permutation(sessions)
    session = int(order[number % BURST])
    character = min(int(rng.zipf(1.6)), characters) - 1
    if session in texts:
      character = texts[session][0]
    shared = tokens[character]
    _, prompt, whole = texts.get(session, (0, None, shared))
    if prompt is not None and rng.random() < swipes:
      reach = len(prompt)
    else:
      message = rng.integers(1, 250, int(rng.integers(3, 40)))
      reach = len(whole) if prompt is not None else 0
      prompt = np.concatenate([whole, message])
    one = request_lib.Request(
      prompt,
      int(rng.integers(1, 30)),
      sampling.Sampling(seed=number),
      owner=str(session),
      shared=len(shared),
      conversation=session,
    )
    answer = fake_device.expected(one)[0]
    texts[session] = character, prompt, np.concatenate([prompt, answer])
    asked.append(one)
    columns.append(
      (now, session, character, len(shared), len(prompt), len(answer), reach)
    )
  return simulator.Trace(*map(np.array, zip(*columns))), asked


def run_engine(trace, asked, law, sizes, shapes, monkeypatch):
  """Runs requests; returns seconds of first and last tokens, and of rounds."""
  longest = int((trace.prompt + trace.answer).max())
  pools = fake_device.pools(
    longest, sizes.page, sizes.window, (sizes.pages, sizes.local_pages)
  )
  decoder = fake_device.Decoder(pools, sizes.rows, longest)
  chunk = max(tokens for _, tokens in shapes)
  rounds = Rounds(decoder, chunk, law, shapes)
  monkeypatch.setattr(compiled, 'Rounds', lambda *_: rounds)
  now = [0.0]
  engine = engine_lib.Engine(decoder, chunk=chunk, clock=lambda: now[0])
  count, given, live = len(asked), 0, {}
  first, done = np.full(count, np.nan), np.full(count, np.nan)
  longest_round = 0.0
  while live or given < count:
    if not live:
      now[0] = max(now[0], trace.seconds[given])
    while given < count and trace.seconds[given] <= now[0]:
      live[given] = engine.submit(asked[given])
      given += 1
    rounds.seconds = law.fixed
    engine.advance()
    now[0] += rounds.seconds
    longest_round = max(longest_round, rounds.seconds)
    for number, one in list(live.items()):
      if np.isnan(first[number]) and (one.is_drawing or one.reason):
        first[number] = now[0]
      if one.reason is not None:
        done[number] = now[0]
        del live[number]
  return first, done, longest_round
