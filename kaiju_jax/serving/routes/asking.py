"""The steps that endpoints share: access, body, gate, engine, answer."""

import asyncio
from collections.abc import Coroutine
from collections.abc import Sequence
import time
from typing import Any
from typing import TypeVar

from starlette import requests as http

from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import bodies
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import exchange as exchange_lib
from kaiju_jax.serving.http import metrics as metrics_lib
from kaiju_jax.serving.replies import reply as reply_lib
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.routes import context as context_lib
from kaiju_jax.serving.routes import fields as fields_lib
from kaiju_jax.serving.safety import gate
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.safety import stored_texts
from kaiju_jax.serving.stores import characters

_Kind = TypeVar('_Kind')
# Bytes of other work that take as long as the gate takes per character.
_JUDGED = 64


async def authorize(
  request: http.Request,
) -> tuple[context_lib.Context, auth.Caller]:
  """Returns the server's parts and the caller, and counts the request.

  Raises:
    errors.ApiError: 401 or 403 without access; 429 for too many requests; 503
      while the server stops.
  """
  context: context_lib.Context = request.app.state.context
  found = context.access.caller(request)
  exchange_lib.find(request).asked_by(found.owner, context.secret)
  context.limits.request(found.owner, found.rate)
  if not context.is_ready:
    raise errors.unavailable('the server is being stopped.')
  return context, found


async def body(
  request: http.Request,
  context: context_lib.Context,
  who: auth.Caller,
  most: int = bodies.MOST,
) -> bytes:
  """Reads a request's body, and counts its bytes against the owner's limits.

  Args:
    request: a request whose body has not been read.
    context: the server's parts.
    who: the caller.
    most: the largest size, in bytes.

  Raises:
    errors.ApiError: 413 for a larger body; 429 when the owner's limits are
      used up.
  """
  found = await bodies.read(request, most)
  context.limits.text(who.owner, len(found), who.rate)
  return found


async def parse_fields(
  request: http.Request,
  context: context_lib.Context,
  who: auth.Caller,
  kind: type[_Kind],
) -> _Kind:
  """Reads a request's body as JSON, and returns its checked fields.

  Args:
    request: a request whose body has not been read.
    context: the server's parts.
    who: the caller.
    kind: a class of `fields.py`.

  Raises:
    errors.ApiError: 400, 413, 415 or 429.
  """
  bodies.media_type(request, [bodies.JSON])
  found = await body(request, context, who)
  return await context.run_aside(
    len(found), lambda: fields_lib.parse(kind, bodies.parse(found))
  )


def find_character(
  context: context_lib.Context, model: str, character: str | None
) -> str | None:
  """Returns the id of the character that a request names; None for none.

  Args:
    context: the server's parts.
    model: the field `model`: the served model's name, or `MODEL/CHARACTER`.
    character: the field `character`; None where the request has none.

  Raises:
    errors.ApiError: 404 for another model; 400 where the two fields name two
      characters.
  """
  name, _, named = model.removeprefix(context.model.name).partition('/')
  if not model.startswith(context.model.name) or name:
    raise errors.missing(
      f'model {model!r} is not served here: {context.model.name!r} is.',
      param='model',
    )
  if named and character not in (None, named):
    raise errors.invalid(
      f'character={character!r}: the model names {named!r}.', param='character'
    )
  return named or character


async def replies(
  exchange: exchange_lib.Exchange,
  context: context_lib.Context,
  who: auth.Caller,
  watch: moderation.Watch,
  requests: Sequence[request_lib.Request],
  said: str = '',
) -> reply_lib.Choices:
  """Submits requests to the engine, and returns their replies.

  Takes one of the owner's slots for the answer. The exchange frees the slot and
  cancels the sequences when it ends, unless `Choices.close` has done so.

  Args:
    exchange: the HTTP request's account.
    context: the server's parts.
    who: the caller.
    watch: judges the prompts and the replies.
    requests: the engine's requests, one per choice.
    said: the user's text, which is judged with each reply.

  Raises:
    errors.ApiError: 429 if the owner has too many answers open, or the engine
      is too busy; 503 if it has stopped; 400 if it refuses a request.
  """
  came = time.perf_counter()
  slot = context.limits.stream(who.owner, who.rate)
  exchange.at_end(slot.close)
  streams = await _submit(context, requests)
  for stream in streams:
    exchange.at_end(stream.cancel)

  def refused(stage: str) -> None:
    context.metrics.refusals.labels(stage, watch.tier).inc()
    exchange.note_end(stage)

  found = [
    reply_lib.Reply(
      stream,
      watch,
      said,
      _observe_times(context.metrics, came, len(one.tokens)),
      refused,
    )
    for stream, one in zip(streams, requests)
  ]
  exchange.at_end(lambda: _account(exchange, requests, found))
  return reply_lib.Choices(found, slot)


async def _submit(
  context: context_lib.Context, requests: Sequence[request_lib.Request]
) -> list[worker_lib.Stream]:
  """Returns the engine's streams; raises its refusals as `errors.ApiError`."""
  try:
    return await context.worker.submit(*requests)
  except request_lib.Busy as error:
    context.metrics.rejected.labels('busy').inc()
    if error.seconds is None:
      raise errors.unavailable(str(error)) from error
    raise errors.busy(str(error), error.seconds) from error
  except worker_lib.Stopped as error:
    raise errors.unavailable('the engine has stopped.') from error
  except (TypeError, ValueError) as error:
    raise errors.invalid(str(error)) from error


def _account(
  exchange: exchange_lib.Exchange,
  requests: Sequence[request_lib.Request],
  found: Sequence[reply_lib.Reply],
) -> None:
  """Notes the replies' tokens for the log; counts a shared prompt once."""
  firsts = {id(one.tokens): n for n, one in reversed([*enumerate(requests)])}
  exchange.prompt = sum(len(requests[n].tokens) for n in firsts.values())
  exchange.cached = sum(found[n].reused for n in firsts.values())
  exchange.completion = sum(len(reply.tokens) for reply in found)
  for reply in found:
    if reply.reason is not None:
      exchange.note_end(reply.reason)


def _observe_times(metrics: metrics_lib.Metrics, came: float, prompt: int):
  """Returns a function that a reply calls with each group of new tokens.

  It observes the time to the first token, the queue and the gaps between
  tokens.

  Args:
    metrics: the server's.
    came: the time at which the request came, by `time.perf_counter`.
    prompt: the number of the prompt's tokens.
  """
  last = None

  def note(stream: worker_lib.Stream, count: int) -> None:
    nonlocal last
    now = time.perf_counter()
    if last is None:
      metrics.ttft.observe(now - came)
      metrics.queue.observe(stream.waited)
      metrics.prompt_tokens.inc(prompt)
      metrics.cached_tokens.inc(stream.reused)
    else:
      for _ in range(count):
        metrics.itl.observe((now - last) / count)
    last = now

  return note


async def judge_request(
  context: context_lib.Context,
  who: auth.Caller,
  text: str,
  param: str = 'messages',
) -> tuple[moderation.Watch, bool]:
  """Reads a request's new text with the gate.

  Args:
    context: the server's parts.
    who: the caller, whose age sets the thresholds.
    text: the text that no earlier request had judged.
    param: the request's field that holds it.

  Returns:
    The watch that judges this request's reply; whether the gate blocks it.

  Raises:
    errors.ApiError: 503 where there is a gate and no token-level head; 400
      for a text that is longer than the gate reads at once.
  """
  watch = _watch(context, who.age, who.owner)
  if watch.mode == 'moderated' and len(text) > gate.MOST:
    raise errors.invalid(
      f'{param}: {len(text):,} characters are new; the gate reads at most'
      f' {gate.MOST:,} at once.',
      param,
      'context_length_exceeded',
    )
  size = _JUDGED * len(text)
  verdict = await context.run_aside(size, lambda: watch.read(text))
  if verdict.is_blocked:
    context.metrics.refusals.labels(verdict.stage, verdict.tier).inc()
  return watch, verdict.is_blocked


async def check_stored(
  context: context_lib.Context,
  who: auth.Caller,
  value: Any,
  name: str,
  is_public: bool = False,
) -> None:
  """Refuses a value to be stored if the gate blocks any of its strings.

  Args:
    context: the server's parts.
    who: the caller.
    value: dataclasses, mappings, sequences and strings.
    name: the request's field that holds the value.
    is_public: whether all owners may see it: then minors' thresholds apply.

  Raises:
    errors.ApiError: 400 for a blocked string; 503 where the gate fails, or
      there is a gate and no token-level head.
  """
  watch = _watch(context, None if is_public else who.age, who.owner)
  if watch.mode == 'unmoderated':
    return
  pieces = list(stored_texts.pieces(value))
  size = _JUDGED * sum(map(len, pieces))

  def read() -> moderation.Verdict | None:
    verdicts = map(watch.read, pieces)
    return next((x for x in verdicts if x.is_blocked or x.has_failed), None)

  verdict = await context.run_aside(size, read)
  if verdict is None:
    return
  context.metrics.refusals.labels(verdict.stage, verdict.tier).inc()
  if verdict.has_failed:
    # A stored text is shown without the head's scores: only the gate reads it.
    raise errors.unavailable(f'{name}: the safety gate cannot read it now.')
  raise errors.invalid(
    f'{name}: refused by the safety gate.', name, 'content_filter'
  )


def _watch(context: context_lib.Context, age, owner: str) -> moderation.Watch:
  watch = context.moderator.watch(age, owner)
  if watch.mode == 'closed':
    raise errors.unavailable(f'{context_lib.CLOSED}.')
  return watch


def page(
  data: list[dict],
  found: Sequence[characters.Character | characters.Session],
  most: int,
) -> dict[str, Any]:
  """Returns a page of a listing, in OpenAI's form.

  Args:
    data: the entries as plain data.
    found: the same entries as the store returned them.
    most: the largest number of entries per page.

  Returns:
    The page; the query parameter `after` set to its `after` gives the next one.
  """
  return {
    'object': 'list',
    'data': data,
    'has_more': len(found) == most,
    'after': characters.cursor(found[-1]) if found else None,
  }


def too_long(message: str, param: str) -> errors.ApiError:
  """Returns a 400: a text is too long for the model or for its field."""
  return errors.invalid(message, param, 'context_length_exceeded')


def check_limit(
  context: context_lib.Context, field: str, limit: int | None
) -> None:
  """Refuses a limit of a reply that leaves no room for a prompt.

  Args:
    context: the server's parts.
    field: the request's field that holds the limit.
    limit: tokens of the reply; None where the client named none.

  Raises:
    errors.ApiError: 400; names the field, its value and the model's length.
  """
  if limit is not None and limit >= context.model.length:
    raise too_long(
      f'{field}={limit}: must be less than {context.model.length:,}, the tokens'
      ' of prompt and reply that this model takes.',
      field,
    )


def guide(context: context_lib.Context) -> request_lib.Guide:
  """Returns the settings of a guided request's search.

  Raises:
    errors.ApiError: 400; there is no token-level head to guide it.
  """
  if context.guide is None:
    raise errors.invalid(
      'guided: this server has no token-level head that could guide a search;'
      ' it is started with --head.',
      param='guided',
    )
  return context.guide


async def answer_client(
  request: http.Request, answer: Coroutine[Any, Any, dict]
) -> dict:
  """Awaits an answer, and cancels it if the client leaves first.

  Raises:
    asyncio.CancelledError: the client has left.
  """
  made = asyncio.ensure_future(answer)
  gone = asyncio.ensure_future(_wait_for_disconnect(request))
  try:
    await asyncio.wait([made, gone], return_when=asyncio.FIRST_COMPLETED)
    if not made.done():
      made.cancel()
    return await made
  finally:
    gone.cancel()
    made.cancel()


async def _wait_for_disconnect(request: http.Request) -> None:
  while (await request.receive())['type'] != 'http.disconnect':
    pass
