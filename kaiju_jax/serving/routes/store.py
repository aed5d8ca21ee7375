"""Stage 6 of a request, store: the store's asynchronous door, and what is kept.

The user's message is stored once the engine has accepted the request, so that a
refused request can be sent again unchanged. The reply becomes a child of the
message that it answers, beside other candidates. A reply that continues one
that has begun is kept whole, as another candidate.
"""

import asyncio
from collections.abc import Callable
import dataclasses
import datetime
import functools
import random
from typing import Any
from typing import TypeVar

import numpy as np

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.prompts import macros
from kaiju_jax.characters.prompts import memo as memo_lib
from kaiju_jax.characters.prompts import prompt as prompt_lib
from kaiju_jax.data import begun as begun_lib
from kaiju_jax.data import chat as chat_format
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import fair_threads
from kaiju_jax.serving.http import metrics as metrics_lib
from kaiju_jax.serving.replies import reply as reply_lib
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import conversing

_T = TypeVar('_T')
# Threads for calls of the store, which mostly wait; and those of one owner.
_THREADS, _EACH = 16, 4
_CHECKED = 1.0  # Seconds for which a check is reused (our guess).


class Store:
  """A `conversing.Store` for handlers: awaits its methods, in threads.

      session = await store.session(owner, id)
      names = await store.run(lambda blocking: …)    several calls at once

  Owners have turns. Errors of the store are raised as `errors.ApiError`: 403,
  404, 409 or 503 for its own, 400 for a TypeError or ValueError.
  """

  def __init__(self, blocking: conversing.Store, metrics: metrics_lib.Metrics):
    self.blocking = blocking
    self._metrics = metrics
    self._threads = fair_threads.FairThreads('store', _THREADS, _EACH)
    self._check: tuple[float, asyncio.Future] | None = None

  def __getattr__(self, name: str) -> Callable[..., Any]:
    """Returns the asynchronous form of a method of `conversing.Store`."""
    return lambda *arguments, **options: self.run(
      lambda store: getattr(store, name)(*arguments, **options)
    )

  async def run(self, work: Callable[[conversing.Store], _T]) -> _T:
    """Calls a function of the blocking store in a thread."""
    try:
      return await self._threads.run(functools.partial(work, self.blocking))
    except characters.Missing as error:
      raise errors.missing(str(error)) from error
    except characters.NotOwner as error:
      raise errors.forbidden(str(error)) from error
    except characters.Conflict as error:
      raise errors.conflict(str(error)) from error
    except characters.Unavailable as error:
      self._metrics.store_failures.inc()
      # The log names the store's place; the answer must not.
      raise errors.unavailable(f'the store: {error.fault}.') from error
    except (TypeError, ValueError) as error:
      raise errors.invalid(str(error)) from error

  async def check(self) -> None:
    """Tests, at most once per second, that the store accepts writes."""
    loop = asyncio.get_running_loop()
    if self._check is None or loop.time() - self._check[0] > _CHECKED:
      trying = asyncio.ensure_future(self.run(lambda store: store.check()))
      trying.add_done_callback(asyncio.Future.exception)
      self._check = loop.time(), trying
    # A request that is cancelled must not cancel the check of the others.
    await asyncio.shield(self._check[1])

  def close(self) -> None:
    """Ends the threads, and closes the store."""
    self._threads.close()
    self.blocking.close()


@dataclasses.dataclass
class PendingTurn:
  """A turn of a chat: the prompt of a reply, and where the reply is kept."""

  prompt: prompt_lib.Prompt
  # The chat format of the prompt.
  format: prompt_lib.Encoded
  # The text that the gate reads: all that no earlier turn had judged.
  judged: str
  # Of the prompt's tree (`sharing.Tree`); '' without a character.
  cache_salt: str = ''
  # The reply's key in `memo.py`; None with a session.
  place: bytes | None = None
  # The stored conversation; None for a chat that the client keeps.
  session: characters.Session | None = None
  # The user's new message; None for none.
  said: str | None = None
  # The id of the message that the reply answers; None without a session, and
  # until `said` is stored.
  parent: int | None = None
  # The text of the reply that stands in the prompt, '' for none; its tokens;
  # the reasoning before it.
  begun: str = ''
  opened: begun_lib.Begun | None = None
  reasoning: str = ''

  @property
  def begun_tokens(self) -> np.ndarray:
    """The tokens of the text that the reply continues, int32 [L], maybe 0."""
    tokens = self.prompt.tokens
    return tokens[len(tokens) - (self.opened.count if self.opened else 0) :]

  @property
  def conversation(self) -> str | None:
    """The name by which the engine knows turns of one conversation."""
    return None if self.session is None else self.session.id


async def keep_message(store: Store, turn: PendingTurn) -> None:
  """Stores the user's new message, if there is one."""
  if turn.said is None:
    return
  message = await store.append(
    turn.session.owner,
    turn.session.id,
    turn.session.head,
    characters.USER,
    turn.said,
    if_head=turn.session.head,
  )
  turn.parent = message.id


async def keep_reply(
  store: Store,
  memo: memo_lib.Memo,
  turn: PendingTurn,
  reply: reply_lib.Reply,
  finish: str | None,
  drawn: characters.Drawn,
) -> int | None:
  """Stores a reply; returns its message's id, or None without a session.

  Without a session only the reply's tokens are remembered.
  """
  text = turn.begun + reply.text
  if turn.session is None:
    if reply.drawn is not None:
      memo.keep(turn.place, text, reply.drawn)
    return None
  message = await store.append(
    turn.session.owner,
    turn.session.id,
    turn.parent,
    characters.ASSISTANT,
    text,
    tokens=reply.drawn,
    finish=finish,
    reasoning=(turn.reasoning + reply.reasoning) or None,
    drawn=drawn,
  )
  return message.id


def strip(field: str, text: str) -> str:
  """Returns a text without control characters."""
  size = len(text.encode())
  if size > macros.MOST:
    raise errors.too_long(
      f'{field}: the text has {size:,} bytes: at most {macros.MOST:,}.', field
    )
  return chat_format.strip(text)


def write_message(field: str, fields: card_fields.Fields, text: str) -> str:
  """Returns a message as it is stored, with its macros expanded.

  Args:
    field: the request's field that holds the text, for the error.
    fields: the character's.
    text: the text, without control characters.
  """
  try:
    return macros.expand(
      text,
      card_fields.display_name(fields),
      macros.USER,
      random.Random(),
      datetime.datetime.now(),
    )
  except macros.TooLarge as error:
    raise errors.too_long(f'{field}: {error}', field) from error
