"""Judging: what the gate says of requests, and of what is to be stored."""

import asyncio
import functools
from typing import Any

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import fair_threads
from kaiju_jax.serving.routes import context as context_lib
from kaiju_jax.serving.routes import forgetting
from kaiju_jax.serving.routes import texts
from kaiju_jax.serving.safety import gate
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.safety import stored_texts
from kaiju_jax.serving.stores import characters

# The gate takes as long for a character as other work for so many bytes.
_JUDGED = 64
# Draws of a greeting until it is refused.
_DRAWS = 8
# Public cards whose verdicts are remembered (our guess).
_REMEMBERED = 2**16


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
  _count(context, verdict)
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
  verdict = await _read_stored(context, watch, value)
  if verdict.has_failed:
    # A stored text is shown without the head's scores: only the gate reads it.
    raise gate_failed(name)
  if verdict.is_blocked:
    raise _refused(name, name)


async def check_card(
  context: context_lib.Context,
  who: auth.Caller,
  fields: card_fields.Fields,
  is_public: bool,
) -> None:
  """Refuses a card if the gate blocks a text that it is read by.

  Raises:
    errors.ApiError: see `check_stored` and `texts.of_character`.
  """
  value = await _card_texts(context, fields)
  await check_stored(context, who, value, 'fields', is_public)


async def draw_greetings(
  context: context_lib.Context,
  who: auth.Caller,
  character: characters.Character,
  fields: card_fields.Fields,
) -> list[str]:
  """Returns a character's greetings for a new session, with their macros drawn.

  The gate reads each draw. Without choices, dice and the time a greeting is one
  of the texts that it read with the card.

  Args:
    context: the server's parts.
    who: the caller, who opens the session.
    character: the character; a public one is judged by minors' thresholds.
    fields: those of its version.

  Raises:
    errors.ApiError: 400 where the gate blocks several draws of a greeting; 503
      where it fails.
  """
  made = []
  for name, text in texts.greetings(fields).items():
    draws = 0
    while True:
      write = functools.partial(texts.write_message, name, fields, text)
      written = await context.run_aside(len(text), write)
      if context.moderator.mode == 'unmoderated':
        break
      if texts.is_certain(fields, text, written):
        break
      watch = _watch(
        context, None if character.is_public else who.age, character.owner
      )
      verdict = await _read_stored(context, watch, written)
      if verdict.has_failed:
        raise gate_failed(name)
      if not verdict.is_blocked:
        break
      draws += 1
      if draws == _DRAWS:
        raise _refused(name, 'character')
    made.append(written)
  return made


def judge_live(
  context: context_lib.Context, character: characters.Character
) -> asyncio.Task[moderation.Verdict]:
  """Returns the served gate's verdict on a public character's live version.

  It is remembered until another gate or other thresholds are served, so that
  each version is read once; by a gate that fails, again.

  Args:
    context: the server's parts.
    character: a public one.

  Returns:
    A task that all requests for the character share: shield it. It raises
    errors.ApiError, 503, where the store is away.
  """
  watch = context.moderator.watch(None, character.owner)
  if context.judged is None or context.judged.version is not watch.version:
    context.judged = context_lib.Judged(watch.version)
  verdicts = context.judged.verdicts
  key = character.id, character.live
  if key not in verdicts:
    verdicts[key] = asyncio.ensure_future(
      _judge(context, watch, character.owner, *key)
    )
    verdicts[key].add_done_callback(lambda task: _forget(verdicts, key, task))
    if len(verdicts) > _REMEMBERED:
      del verdicts[next(iter(verdicts))]
  return verdicts[key]


def gate_failed(name: str) -> errors.ApiError:
  """Returns a 503: the gate could not read what the request calls `name`."""
  return errors.unavailable(f'{name}: the safety gate cannot read it now.')


async def _judge(
  context: context_lib.Context,
  watch: moderation.Watch,
  author: str,
  name: str,
  number: int,
) -> moderation.Verdict:
  # Whoever asks first, others wait for it too: it has turns of its own.
  fair_threads.OWNER.set(('judged', author))
  version = await context.run_store(context.store.version, name, number)
  value = await _card_texts(context, version.fields)
  verdict = await _read_stored(context, watch, value)
  if verdict.is_blocked and not verdict.has_failed:
    await forgetting.withdraw_blocked(context, version)
  return verdict


def _refused(name: str, param: str) -> errors.ApiError:
  return errors.invalid(
    f'{name}: refused by the safety gate.', param, 'content_filter'
  )


def _forget(verdicts: dict, key: Any, task: asyncio.Task) -> None:
  """Drops a verdict that is none, so that the next request asks again."""
  if task.cancelled() or task.exception() or task.result().has_failed:
    verdicts.pop(key, None)


async def _card_texts(context: context_lib.Context, fields) -> list[str]:
  """Returns what is read of a card."""
  size = card_fields.count_bytes(fields)
  return await context.run_aside(size, lambda: texts.of_character(fields))


async def _read_stored(
  context: context_lib.Context, watch: moderation.Watch, value: Any
) -> moderation.Verdict:
  """Returns the gate's verdict on all strings of a value."""
  text = stored_texts.join(value)
  size = _JUDGED * len(text)
  verdict = await context.run_aside(size, lambda: watch.read(text))
  # A stored text that the gate could not judge is refused, too.
  _count(context, verdict, is_refused=verdict.has_failed)
  return verdict


def _count(
  context: context_lib.Context,
  verdict: moderation.Verdict,
  is_refused: bool = False,
) -> None:
  """Counts a text that the gate read, if there is one."""
  if verdict.stage != 'gate':
    return
  context.metrics.judged.labels('gate', verdict.tier).inc()
  if verdict.has_failed:
    context.metrics.gate_failures.labels(verdict.tier).inc()
  if verdict.is_blocked or is_refused:
    context.metrics.refusals.labels('gate', verdict.tier).inc()


def _watch(context: context_lib.Context, age, owner: str) -> moderation.Watch:
  watch = context.moderator.watch(age, owner)
  if watch.mode == 'closed':
    raise errors.unavailable(f'{context_lib.CLOSED}.')
  return watch
