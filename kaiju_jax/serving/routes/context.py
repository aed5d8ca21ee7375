"""The parts of a server that its endpoints use, made by `api.app`'s caller."""

import asyncio
from collections.abc import Callable
from concurrent import futures
import dataclasses
import secrets
from typing import Any
from typing import TypeVar

from kaiju_jax.characters.prompts import memo as memo_lib
from kaiju_jax.characters.prompts import prompt as prompt_lib
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import limits as limits_lib
from kaiju_jax.serving.http import metrics as metrics_lib
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.stores import characters

_T = TypeVar('_T')
# Bytes of texts that are worked on in the event loop, and beside it among
# others' texts; longer ones have a thread of their own.
_SHORT, _LONG = 2**12, 2**16
_CHECKED = 1.0  # Seconds for which a check of the store holds (our guess).
CLOSED = 'closed: no token-level head'


@dataclasses.dataclass(frozen=True)
class Model:
  """What is served.

  Attributes:
    name: its id in the API.
    parameters: how many it has.
    length: tokens of a prompt and its reply, at most.
    digest: of its tokenizer, to which encoded prefixes belong.
    origin: where it comes from, in words.
    created: unix seconds.
  """

  name: str
  parameters: int
  length: int
  digest: str
  origin: str
  created: int


@dataclasses.dataclass
class Context:
  """The parts of one server.

  Attributes:
    worker: runs the engine.
    model: what is served.
    tokenizer: of the model.
    format: how messages become tokens.
    store: characters and conversations.
    access: who may ask.
    limits: how much.
    metrics: what Prometheus reads.
    moderator: the gate, and what may be shown.
    memo: the tokens that the model drew, for clients that send text back.
    secret: under which the log has owners' pseudonyms.
    guide: of `guided` requests; None where there is no token-level head.
    guided_tokens: of a guided reply, at most: the rows have room for its beams.
    max_tokens: of a reply for which the client named none (our guess: 512).
    is_ready: whether it takes requests; False while it stops.
  """

  worker: worker_lib.Worker
  model: Model
  tokenizer: tokenizer_lib.Tokenizer
  format: prompt_lib.Encoded
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
  max_tokens: int = 512
  is_ready: bool = True
  _check: tuple[float, asyncio.Future] | None = None

  def __post_init__(self):
    self._texts = futures.ThreadPoolExecutor(2, 'text')
    self._long_texts = futures.ThreadPoolExecutor(1, 'long text')

  def close(self) -> None:
    """Ends the engine's thread, and closes the store."""
    self.worker.stop()
    self.store.close()
    for threads in self._texts, self._long_texts:
      threads.shutdown(cancel_futures=True)

  async def run_aside(self, size: int, function: Callable[[], _T]) -> _T:
    """Returns what a function makes of a text, without holding others up.

    The event loop stands still for short texts alone, and a long one waits
    for other long ones.

    Args:
      size: bytes of the text.
      function: takes time in proportion to them; raises as it likes.
    """
    if size <= _SHORT:
      return function()
    threads = self._texts if size <= _LONG else self._long_texts
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(threads, function)

  async def check_store(self) -> None:
    """Tests, at most once per second, that the store accepts writes.

    Raises:
      errors.ApiError: 503, it does not.
    """
    loop = asyncio.get_running_loop()
    if self._check is None or loop.time() - self._check[0] > _CHECKED:
      trying = asyncio.ensure_future(self.run_store(self.store.check))
      trying.add_done_callback(asyncio.Future.exception)
      self._check = loop.time(), trying
    # One that leaves does not stop what others wait for.
    await asyncio.shield(self._check[1])

  async def run_store(self, method: Callable[..., Any], *arguments, **options):
    """Returns what a method of the store returns, run beside the event loop.

    Raises:
      errors.ApiError: 403, 404, 409 or 503, by the store's own error; 400 for
        what it refuses by name.
    """
    try:
      return await asyncio.to_thread(method, *arguments, **options)
    except characters.Missing as error:
      raise errors.missing(str(error)) from error
    except characters.NotOwner as error:
      raise errors.forbidden(str(error)) from error
    except characters.Conflict as error:
      raise errors.conflict(str(error)) from error
    except characters.Unavailable as error:
      # Where the store is, the log says.
      raise errors.unavailable(f'the store: {error.fault}.') from error
    except (TypeError, ValueError) as error:
      raise errors.invalid(str(error)) from error
