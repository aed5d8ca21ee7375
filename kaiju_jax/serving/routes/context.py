"""Holds the parts of a server that its endpoints use.

The caller of `api.app` makes them.
"""

import asyncio
from collections.abc import Mapping
import dataclasses
import functools
import hashlib
import secrets
from typing import Any

import kaiju_jax
from kaiju_jax.characters.prompts import memo as memo_lib
from kaiju_jax.characters.prompts import prompt as prompt_lib
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.drift import watch as drift_watch
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import fair_threads
from kaiju_jax.serving.http import limits as limits_lib
from kaiju_jax.serving.http import metrics as metrics_lib
from kaiju_jax.serving.replies import saved_points
from kaiju_jax.serving.routes import store as store_lib
from kaiju_jax.serving.routing import replica as replica_lib
from kaiju_jax.serving.routing import rollouts as rollouts_lib
from kaiju_jax.serving.routing import router
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.stores import conversing

# Texts of up to so many bytes are processed in the event loop.
_SHORT = 2**12
# Threads for longer texts, of which each owner has one at once. They share the
# interpreter's lock with the event loop, so they are few (our guess).
_TEXTS = 4
CLOSED = 'closed: no token-level head'


@dataclasses.dataclass(frozen=True)
class Model:
  """The served model."""

  name: str  # Its id in the API.
  parameters: int
  # The most tokens of a prompt and its reply together.
  length: int
  # Of its tokenizer; a stored prefix is valid for this digest only.
  digest: str
  origin: str  # Where it comes from, in words.
  created: int  # Unix seconds.
  # Hex digest of its weights and config, for what it draws; '' if unknown.
  weights: str = ''
  license: str = ''  # Its name, such as 'apache-2.0'; '' if unknown.

  @functools.cached_property
  def fingerprint(self) -> str:
    """Names the weights and the program that serves them."""
    served = f'{self.weights or self.origin} {kaiju_jax.__version__}'
    return f'fp_{hashlib.sha256(served.encode()).hexdigest()[:12]}'


@dataclasses.dataclass
class Judged:
  """The verdicts on public characters by one version of the gate."""

  # The gate and its thresholds (`moderation.Watch.version`).
  version: Any
  # By character and version, the oldest first.
  verdicts: dict[tuple[str, int], asyncio.Task[moderation.Verdict]] = (
    dataclasses.field(default_factory=dict)
  )


@dataclasses.dataclass
class Context:
  """The parts of one server."""

  # One engine, or several as one.
  engines: replica_lib.Engines
  model: Model
  tokenizer: tokenizer_lib.Tokenizer
  # Turns messages into tokens; None for a model that only continues text.
  format: prompt_lib.Encoded | None
  # Of characters and conversations; `self.store` is its asynchronous door.
  store: dataclasses.InitVar[conversing.Store]
  access: auth.Access
  limits: limits_lib.Limits
  metrics: metrics_lib.Metrics
  moderator: moderation.Moderator
  # The tokens of recent replies, for clients that send the whole chat.
  memo: memo_lib.Memo = dataclasses.field(default_factory=memo_lib.Memo)
  # The HMAC key of the owners' pseudonyms in the log.
  secret: bytes = dataclasses.field(
    default_factory=lambda: secrets.token_bytes(32)
  )
  # The search of `guided` requests, None without a token-level head; and the
  # most tokens of such a reply: rows have room for its beams.
  guide: request_lib.Guide | None = None
  guided_tokens: int = 128
  # The format of replies that begin with their reasoning; None where nothing
  # turns it on.
  thinking: prompt_lib.Encoded | None = None
  # The fields of `Sampling` that a request has where it names none.
  sampling: Mapping[str, float] = dataclasses.field(default_factory=dict)
  # The same of a chat that does not ask for the likeliest tokens.
  chat_sampling: Mapping[str, float] = dataclasses.field(default_factory=dict)
  # The tokens that end a completion.
  ends: tuple[int, ...] = ()
  # The most tokens of a reply where the client names no limit (our guess).
  max_tokens: int = 512
  # Whether the server takes requests; False while it stops.
  is_ready: bool = True
  # The verdicts of `lookup.judge_live`.
  judged: Judged | None = None
  # Whether a moderated server gives alternatives to the tokens that it
  # released, which no head has judged.
  shows_unjudged: bool = False
  # None for a server that saves no points, and that watches no drift.
  points: saved_points.SavedPoints | None = None
  drift: drift_watch.DriftWatch | None = None
  # Of the replicas, once something asks for them; None without a router.
  rollouts: rollouts_lib.Rollouts | None = None

  def __post_init__(self, store: conversing.Store) -> None:
    self.store = store_lib.Store(store, self.metrics)
    self.texts: fair_threads.FairThreads = fair_threads.FairThreads(
      'text', _TEXTS, 1, _SHORT
    )
    self.metrics.ready.set_function(lambda: self.takes_requests)
    if isinstance(self.engines, router.Router):
      self.metrics.add_fleet(self.engines.read_fleet)

  def close(self) -> None:
    """Saves points, stops the engines, closes the store, ends the threads."""
    for part in self.drift, self.points:
      if part is not None:
        part.stop()
    self.engines.stop()
    self.texts.close()
    self.store.close()

  @property
  def takes_requests(self) -> bool:
    """Whether requests are taken; says nothing of the store."""
    is_open = self.is_ready and self.moderator.mode != 'closed'
    return is_open and self.engines.is_alive
