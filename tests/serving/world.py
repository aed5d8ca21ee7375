"""An engine without a model for the server's tests: each text is known."""

from collections.abc import Callable
import threading
import time

import numpy as np

from kaiju_jax.decoding.engine import compiled
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling
from tests.decoding import fake_device
from tests.decoding import fake_engine

PAGE, CHUNK, NAMES = fake_engine.PAGE, fake_engine.CHUNK, fake_engine.NAMES
WINDOW = 6
_END = 3  # Of a message, with bytes.


async def open_one(worker, *args, **options):
  """Returns the stream of a `request` of these."""
  (stream,) = await worker.submit(request(*args, **options))
  return stream


async def read(stream):
  return [event.token async for event in stream]


class Engine(fake_engine.Engine):
  """An engine over `fake_device`, whose rounds may take time, or fail.

  `pages` are those of the global pool; `options` are of `fake_engine.Engine`.

  Attributes:
    before_round: called before each round.
  """

  def __init__(self, tokenizer=None, rows=4, pages=160, **options):
    options = {'window': WINDOW, 'clock': time.monotonic} | options
    counts = pages, pages // 2
    super().__init__(tokenizer, rows, counts=counts, **options)
    self.before_round = lambda: None

  def advance(self):
    self.before_round()
    super().advance()

  def hold(self):
    """Returns events: a round has begun, and it may go on."""
    begun, goes_on = threading.Event(), threading.Event()
    self.before_round = lambda: (begun.set(), goes_on.wait(60))
    return begun, goes_on


class Scripted(Engine):
  """An engine whose replies and scores are written down.

  Args:
    reply: what is drawn, as bytes, whatever was asked; then the end of a
      message.
    score: returns the probabilities of the last token of a text, a prompt with
      or without a part of its reply.
    **options: of the engine.
  """

  def __init__(
    self,
    tokenizer,
    reply: bytes,
    score: Callable[[bytes], tuple[float, ...]],
    **options,
  ):
    super().__init__(tokenizer, is_judged=True, **options)
    rounds = self.rounds
    prompts: dict[int, bytes] = {}
    replies: dict[int, bytes] = {}

    def drawn(rows):
      for row in rows:
        if row is not None:
          rounds._pending[row] = [*reply, _END][len(replies.get(row, b''))]
      tokens = [0 if row is None else rounds._pending[row] for row in rows]
      others = [fake_device.likeliest(x, rounds.alternatives) for x in tokens]
      drawn = np.array([tokens, np.zeros(len(rows))], np.int32)
      return np.concatenate([drawn, np.array(others).T]).astype(np.int32)

    def join(row, sampling, text_L, prompt):
      held_L = text_L[: rounds._decoder.length_of(row)]
      prompts[row] = bytes(held_L.astype(np.uint8))

    def prefill(chunks, shape):
      rounds.ran += sum(len(chunk.tokens_L) for chunk in chunks)
      rounds._decoder.append({one.row: one.tokens_L for one in chunks})
      judged_BLC = np.full((*shape, len(NAMES)), np.nan, np.float32)
      for place, one in enumerate(chunks):
        replies[one.row] = b''
        for at, token in enumerate(one.tokens_L):
          prompts[one.row] += bytes([token])
          judged_BLC[place, at] = score(prompts[one.row])
      rows = [one.row if one.draws else None for one in chunks]
      return compiled.Prefilled(drawn(rows), judged_BLC)

    def step(rows):
      rounds._decoder.append({row: [rounds._pending[row]] for row in rows})
      for row in rows:
        replies[row] += bytes([rounds._pending[row]])
      judged = [score(prompts[row] + replies[row]) for row in rows]
      score_BC = np.array(judged, np.float32)
      return np.concatenate([drawn(rows), score_BC.view(np.int32).T])

    rounds.join = join
    rounds._drawn, rounds.prefill, rounds.step = drawn, prefill, step


def request(seed=0, prompt=5, count=12, **options) -> request_lib.Request:
  rng = np.random.default_rng(seed)
  return request_lib.Request(
    rng.integers(0, fake_device.VOCABULARY, prompt),
    count,
    sampling.Sampling(seed=seed),
    **options,
  )
