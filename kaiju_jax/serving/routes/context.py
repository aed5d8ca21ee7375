"""Holds the parts of a server that its endpoints use.

The caller of `api.app` makes them.
"""

import asyncio
from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import functools
import hashlib
import secrets
from typing import Any
from typing import TypeVar

from starlette import responses

import kaiju_jax
from kaiju_jax.characters.prompts import memo as memo_lib
from kaiju_jax.characters.prompts import prompt as prompt_lib
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.drift import watch as drift_watch
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import fair_threads
from kaiju_jax.serving.http import limits as limits_lib
from kaiju_jax.serving.http import metrics as metrics_lib
from kaiju_jax.serving.replies import saved_points
from kaiju_jax.serving.routing import engines as engines_lib
from kaiju_jax.serving.routing import rollouts as rollouts_lib
from kaiju_jax.serving.routing import router
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.stores import characters

_T = TypeVar('_T')
# Texts of up to so many bytes are processed in the event loop.
_SHORT = 2**12
# Threads for longer texts, of which each owner has one at once. They share the
# interpreter's lock with the event loop, so they are few (our guess).
_TEXTS = 4
# Threads for calls of the store, which mostly wait; and those of one owner.
_STORES, _STORES_EACH = 16, 4
_CHECKED = 1.0  # Seconds for which a check of the store is reused (our guess).
CLOSED = 'closed: no token-level head'


@dataclasses.dataclass(frozen=True)
class Model:
  """The served model.

  Attributes:
    name: its id in the API.
    parameters: the number of its parameters.
    length: the most tokens of a prompt and its reply together.
    digest: of its tokenizer; a stored prefix is valid for this digest only.
    origin: where the model comes from, in words.
    created: Unix seconds.
    weights: hex digest of its weights and config, for what it draws; '' where
      it is not known.
  """

  name: str
  parameters: int
  length: int
  digest: str
  origin: str
  created: int
  weights: str = ''

  @property
  def fingerprint(self) -> str:
    """Names the weights and the program that serves them."""
    served = f'{self.weights or self.origin} {kaiju_jax.__version__}'
    return f'fp_{hashlib.sha256(served.encode()).hexdigest()[:12]}'


@dataclasses.dataclass
class Judged:
  """The verdicts on public characters by one version of the gate.

  Attributes:
    version: the gate and its thresholds (`moderation.Watch.version`).
    verdicts: by character and version, the oldest first.
  """

  version: Any
  verdicts: dict[tuple[str, int], asyncio.Task[moderation.Verdict]] = (
    dataclasses.field(default_factory=dict)
  )


@dataclasses.dataclass
class Context:
  """The parts of one server.

  Attributes:
    engines: runs the engine, or several as one.
    model: the served model.
    tokenizer: the model's.
    format: turns messages into tokens; None for a model that only continues
      text.
    store: keeps characters and conversations.
    access: identifies callers.
    limits: the rate limits per owner.
    metrics: counters and histograms for Prometheus.
    moderator: the gate, the thresholds of the token-level head.
    memo: the tokens of recent replies, for clients that send the whole chat.
    secret: the HMAC key of the owners' pseudonyms in the log.
    guide: the search of `guided` requests; None without a token-level head.
    guided_tokens: the most tokens of a guided reply; rows have room for its
      beams.
    thinking: the format of replies that begin with their reasoning; None where
      nothing turns it on.
    sampling: the fields of `Sampling` that a request has where it names none.
    ends: the tokens that end a completion.
    max_tokens: the most tokens of a reply where the client names no limit (our
      guess: 512).
    is_ready: whether the server takes requests; False while it stops.
    judged: the verdicts of `judging.judge_live`.
    shows_unjudged: whether a moderated server gives alternatives to the tokens
      that it released, which no head has judged.
    points: saves the cache's points; None for a server that saves none.
    drift: watches whether traffic drifts; None for a server that does not.
    rollouts: of the replicas, once something asks for them (`operations.py`);
      None without a router.
  """

  engines: engines_lib.Engines
  model: Model
  tokenizer: tokenizer_lib.Tokenizer
  format: prompt_lib.Encoded | None
  store: characters.Store
  access: auth.Access
  limits: limits_lib.Limits
  metrics: metrics_lib.Metrics
  moderator: moderation.Moderator
  memo: memo_lib.Memo = dataclasses.field(default_factory=memo_lib.Memo)
  secret: bytes = dataclasses.field(
    default_factory=lambda: secrets.token_bytes(32)
  )
  guide: request_lib.Guide | None = None
  guided_tokens: int = 128
  thinking: prompt_lib.Encoded | None = None
  sampling: Mapping[str, float] = dataclasses.field(default_factory=dict)
  ends: tuple[int, ...] = ()
  max_tokens: int = 512
  is_ready: bool = True
  judged: Judged | None = None
  shows_unjudged: bool = False
  points: saved_points.SavedPoints | None = None
  drift: drift_watch.Watch | None = None
  rollouts: rollouts_lib.Rollouts | None = None
  _check: tuple[float, asyncio.Future] | None = None

  def __post_init__(self):
    self._texts = fair_threads.FairThreads('text', _TEXTS, 1)
    self._stores = fair_threads.FairThreads('store', _STORES, _STORES_EACH)
    self.metrics.ready.set_function(lambda: self.takes_requests)
    if isinstance(self.engines, router.Router):
      self.metrics.add_fleet(self.engines.read_fleet)

  def close(self) -> None:
    """Saves points, stops the engines, closes the store, ends the threads."""
    for part in self.drift, self.points:
      if part is not None:
        part.stop()
    self.engines.stop()
    for threads in self._texts, self._stores:
      threads.close()
    self.store.close()

  @property
  def takes_requests(self) -> bool:
    """Whether requests are taken; says nothing of the store."""
    is_open = self.is_ready and self.moderator.mode != 'closed'
    return is_open and self.engines.is_alive

  @property
  def chats(self) -> prompt_lib.Encoded:
    """The chat format.

    Raises:
      errors.ApiError: 400; the model has none.
    """
    if self.format is None:
      raise errors.invalid(
        'model: it has no chat template and only continues text: use'
        ' /v1/completions, or start the server with --template.',
        param='model',
      )
    return self.format

  def pick_format(self, thinks: bool | None) -> prompt_lib.Encoded:
    """Returns the chat format of a request.

    Args:
      thinks: whether the reply begins with its reasoning; None for the model's
        default, which is without where that is possible.

    Raises:
      errors.ApiError: 400; the model cannot do that, or has no chat format.
    """
    can = (self.thinking is not None, not self.chats.opens_thought)
    if thinks is not None and not (can[0] if thinks else can[1]):
      raise errors.invalid(
        f'chat_template_kwargs.enable_thinking={str(thinks).lower()}: the chat'
        ' template of this model has no such switch: leave it out.',
        param='chat_template_kwargs',
      )
    return self.thinking if thinks else self.chats

  async def run_aside(self, size: int, function: Callable[[], _T]) -> _T:
    """Calls a function of a text where it does not block other requests.

    The event loop runs it for a short text, and a thread for a longer one, in
    which owners have turns.

    Args:
      size: bytes of the text, in proportion to which the function takes time.
      function: called without arguments; its errors are raised here.

    Returns:
      The function's value.
    """
    if size <= _SHORT:
      return function()
    return await self._texts.run(function)

  async def answer_aside(
    self, value: Any, status: int = 200
  ) -> responses.JSONResponse:
    """Returns an answer whose JSON is long, and is written in a thread."""
    return await self._texts.run(lambda: responses.JSONResponse(value, status))

  async def check_store(self) -> None:
    """Tests, at most once per second, that the store accepts writes.

    Raises:
      errors.ApiError: 503 if it does not.
    """
    loop = asyncio.get_running_loop()
    if self._check is None or loop.time() - self._check[0] > _CHECKED:
      trying = asyncio.ensure_future(self.run_store(self.store.check))
      trying.add_done_callback(asyncio.Future.exception)
      self._check = loop.time(), trying
    # A request that is cancelled must not cancel the check of the others.
    await asyncio.shield(self._check[1])

  async def run_store(self, method: Callable[..., Any], *arguments, **options):
    """Calls a method of the store in a thread, and returns its value.

    Owners have turns.

    Raises:
      errors.ApiError: 403, 404, 409 or 503 for the store's own errors; 400 for
        a TypeError or ValueError.
    """
    try:
      return await self._stores.run(
        functools.partial(method, *arguments, **options)
      )
    except characters.Missing as error:
      raise errors.missing(str(error)) from error
    except characters.NotOwner as error:
      raise errors.forbidden(str(error)) from error
    except characters.Conflict as error:
      raise errors.conflict(str(error)) from error
    except characters.Unavailable as error:
      self.metrics.store_failures.inc()
      # The log names the store's place; the answer must not.
      raise errors.unavailable(f'the store: {error.fault}.') from error
    except (TypeError, ValueError) as error:
      raise errors.invalid(str(error)) from error
