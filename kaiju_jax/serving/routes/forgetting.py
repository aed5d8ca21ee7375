"""Forgetting: what was cached of a session or a character goes with it.

Points leave the engine's cache and the files of saved points. That is done
before the store forgets its subject, so that a kill in between leaves no file,
and after it, because a reply may have ended meanwhile.
"""

import asyncio
from collections.abc import Awaitable
from collections.abc import Callable
import contextlib

from kaiju_jax.decoding.engine import forgetting
from kaiju_jax.serving.replies import saved_points
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.routes import context as context_lib
from kaiju_jax.serving.stores import characters

# Forgets what it was made for, again and again.
Forget = Callable[[], Awaitable[None]]


async def plan_session(
  context: context_lib.Context, owner: str, session: str
) -> Forget:
  """Returns a function that forgets what is cached of an owner's session.

  With the last session of a removed character, its prefix goes too.

  Raises:
    errors.ApiError: 404 for no such session; 503 where the store is away.
  """

  def read():
    held = context.store.session(owner, session)
    return context.store.version(held.character, held.version)

  version = await context.run_store(read)

  def is_version_gone() -> bool:
    try:
      context.store.version(version.character, version.number)
    except characters.Missing:
      return True
    return False

  async def forget() -> None:
    await _forget(
      context,
      forgetting.Forget(conversations=((owner, session),)),
      lambda points: points.remove_session(owner, session),
    )
    if await context.run_store(is_version_gone):
      await _forget_prefixes(context, owner, [version.digest])

  return forget


async def plan_character(
  context: context_lib.Context, owner: str, character: str
) -> Forget:
  """Returns a function that forgets the prefixes of an owner's character.

  Raises:
    errors.ApiError: 404 for no such character; 503 where the store is away.
  """

  def read():
    store = context.store
    if store.character(owner, character).owner != owner:
      return set()
    found, before = set(), None
    while versions := store.versions(owner, character, before=before):
      found |= {version.digest for version in versions}
      before = versions[-1].number
    return found

  digests = await context.run_store(read)
  return lambda: _forget_prefixes(context, owner, digests)


async def _forget_prefixes(context, owner: str, digests) -> None:
  salts = tuple(x for one in digests for x in (one, f'{one} {owner}'))
  await _forget(
    context,
    forgetting.Forget(salts=salts),
    lambda points: points.remove_character(owner, digests),
  )


async def _forget(
  context: context_lib.Context,
  wanted: forgetting.Forget,
  remove: Callable[[saved_points.SavedPoints], None],
) -> None:
  # An engine that has stopped has no points either.
  with contextlib.suppress(worker_lib.Stopped):
    await context.engines.forget(wanted)
  if context.points is not None:
    await asyncio.to_thread(remove, context.points)
