"""Lookup: which character a request means, and whether its caller may see it.

A public character is shown to other owners only where the served gate passes
its live version by minors' thresholds. It is judged when it is published, and
by a gate that is newer when it is first asked for.
"""

import asyncio

from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.routes import context as context_lib
from kaiju_jax.serving.routes import judging
from kaiju_jax.serving.stores import character_rules as rules
from kaiju_jax.serving.stores import characters

# Seconds that a listing waits for verdicts (our guess); those that take longer
# are in the next one.
_PATIENCE = 2.0


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


async def find(
  context: context_lib.Context, caller: auth.Caller, character: str
) -> characters.Character:
  """Returns a character that the caller may see.

  Raises:
    errors.ApiError: 404 where there is none; 503 where the gate fails, or the
      store is away.
  """
  found = await context.run_store(
    context.store.character, caller.owner, character
  )
  if _is_judged(context, caller, found):
    verdict = await asyncio.shield(judging.judge_live(context, found))
    if verdict.has_failed:
      raise judging.gate_failed('character')
    if verdict.is_blocked:
      raise errors.missing(str(rules.no_character(character)))
  return found


async def find_all(
  context: context_lib.Context, caller: auth.Caller, most: int, after: str = ''
) -> tuple[list[characters.Character], bool]:
  """Returns characters that the caller may see, oldest first.

  Args:
    context: the server's parts.
    caller: the caller.
    most: the largest number of them.
    after: `characters.cursor` of the last one seen; '' for the beginning.

  Returns:
    (characters, whether there may be more).

  Raises:
    errors.ApiError: 400 for a bad cursor; 503 where the store is away.
  """
  while True:
    found = await context.run_store(
      context.store.characters, caller.owner, most, after
    )
    has_more = len(found) == most
    shown = await _keep_visible(context, caller, found)
    if shown or not has_more:
      return shown, has_more
    after = characters.cursor(found[-1])


async def _keep_visible(context, caller, found) -> list[characters.Character]:
  """Returns the characters that the caller may see, after `_PATIENCE`."""
  tasks = {
    one.id: judging.judge_live(context, one)
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
