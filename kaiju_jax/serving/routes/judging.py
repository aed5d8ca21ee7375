"""Judging: what the gate says of requests, and of what is to be stored."""

from typing import Any

from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.routes import context as context_lib
from kaiju_jax.serving.safety import gate
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.safety import stored_texts

# The gate takes as long for a character as other work for so many bytes.
_JUDGED = 64


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
