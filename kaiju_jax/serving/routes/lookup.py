"""Lookup: characters that a caller may see.

A public character is shown to other owners only where the served gate passes
its live version by minors' thresholds. It is judged when it is published, and
by a gate that is newer when it is first asked for.
"""

import asyncio
from typing import Any

from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.http import fair_threads
from kaiju_jax.serving.routes import context as context_lib
from kaiju_jax.serving.routes import judge
from kaiju_jax.serving.routes import removals
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.stores import character_rules as rules
from kaiju_jax.serving.stores import characters

# Seconds that a listing waits for verdicts (our guess); those that take longer
# are in the next one.
_PATIENCE = 2.0
# Public cards whose verdicts are remembered (our guess).
_REMEMBERED = 2**16


async def find(
  context: context_lib.Context, caller: auth.Caller, character: str
) -> characters.Character:
  """Returns a character that the caller may see."""
  found = await context.store.character(caller.owner, character)
  if _is_judged(context, caller, found):
    verdict = await asyncio.shield(judge_live(context, found))
    if verdict.has_failed:
      raise judge.gate_failed('character')
    if verdict.is_blocked:
      raise errors.missing(str(rules.no_character(character)))
  return found


async def find_all(
  context: context_lib.Context, caller: auth.Caller, most: int, after: str = ''
) -> tuple[list[characters.Character], bool]:
  """Returns characters that the caller may see, oldest first.

  Args:
    most: the largest number of them.
    after: `characters.cursor` of the last one seen; '' for the beginning.

  Returns:
    (characters, whether there may be more).
  """
  while True:
    found = await context.store.characters(caller.owner, most, after)
    has_more = len(found) == most
    shown = await _keep_visible(context, caller, found)
    if shown or not has_more:
      return shown, has_more
    after = characters.cursor(found[-1])


def judge_live(
  context: context_lib.Context, character: characters.Character
) -> asyncio.Task[moderation.Verdict]:
  """Returns the served gate's verdict on a public character's live version.

  It is remembered until another gate or other thresholds are served, so that
  each version is read once; by a gate that fails, again.

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


async def _keep_visible(context, caller, found) -> list[characters.Character]:
  """Returns the characters that the caller may see, after `_PATIENCE`."""
  tasks = {
    one.id: judge_live(context, one)
    for one in found
    if _is_judged(context, caller, one)
  }
  if tasks:
    await asyncio.wait(tasks.values(), timeout=_PATIENCE)
  return [one for one in found if one.id not in tasks or _passes(tasks[one.id])]


def _is_judged(
  context: context_lib.Context,
  caller: auth.Caller,
  character: characters.Character,
) -> bool:
  """Returns whether the gate decides if the caller sees a character."""
  is_others = character.owner not in (caller.owner, characters.BUILT_IN)
  return is_others and context.moderator.mode != 'unmoderated'


def _passes(task: asyncio.Task) -> bool:
  if not task.done() or task.cancelled() or task.exception():
    return False
  verdict = task.result()
  return not (verdict.is_blocked or verdict.has_failed)


async def _judge(
  context: context_lib.Context,
  watch: moderation.Watch,
  author: str,
  name: str,
  number: int,
) -> moderation.Verdict:
  # Whoever asks first, others wait for it too: it has turns of its own.
  fair_threads.OWNER.set(('judged', author))
  version = await context.store.version(name, number)
  value = await judge.read_card(context, version.fields)
  verdict = await judge.read_stored(context, watch, value)
  if verdict.is_blocked and not verdict.has_failed:
    await removals.withdraw_blocked(context, version)
  return verdict


def _forget(verdicts: dict, key: Any, task: asyncio.Task) -> None:
  """Drops a verdict that is none, so that the next request asks again."""
  if task.cancelled() or task.exception() or task.result().has_failed:
    verdicts.pop(key, None)
