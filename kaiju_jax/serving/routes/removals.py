"""Drops what is cached of a session or character that its owner removes.

Points leave the engine's cache and the files of saved points. For what is
removed this is done before the store forgets its subject, so that a kill in
between leaves no file, and after it, because a reply may have ended meanwhile.

A removal drops what its owner alone could have read. Others' conversations stay
in their shared tree, and with them its prefix, until the last of them goes
(`stores/sharing.py`). A prefix that is no longer everybody's (its character was
hidden, removed, edited or rolled back, or the gate blocks it) leaves the disk
at once, unless conversations that are saved need it.
"""

from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterable
import contextlib

from starlette import requests
from starlette import responses

from kaiju_jax.decoding.engine import forgetting
from kaiju_jax.serving.replies import worker as worker_lib
from kaiju_jax.serving.routes import context as context_lib
from kaiju_jax.serving.routes import parse
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import conversing
from kaiju_jax.serving.stores import sharing

# Forgets what it was made for, again and again.
Forget = Callable[[], Awaitable[None]]


async def answer(
  request: requests.Request,
  kind: str,
  method: str,
  plan: Callable[..., Awaitable[Forget]],
) -> responses.Response:
  """Answers a DELETE of what the path names, once nothing is left of it.

  Args:
    kind: 'character' or 'session'.
    method: the store's method that removes it, of owner and id.
    plan: `plan_character` or `plan_session`.
  """
  context, caller = await parse.authorize(request)
  name = request.path_params['id']
  forget = await plan(context, caller.owner, name)
  await forget()
  await context.store.run(
    lambda store: getattr(store, method)(caller.owner, name)
  )
  await forget()
  return responses.JSONResponse({'id': name, 'object': kind, 'deleted': True})


async def plan_session(
  context: context_lib.Context, owner: str, session: str
) -> Forget:
  """Returns a function that forgets what is cached of an owner's session.

  With the last session that could read a prefix, that goes too.
  """

  def read(store: conversing.Store):
    held = store.session(owner, session)
    version = store.version(held.character, held.version)
    return sharing.find_tree(store, owner, version)

  tree = await context.store.run(read)

  async def forget() -> None:
    await _forget(context, forgetting.Forget(conversations=((owner, session),)))
    await _drop_unread(context, {tree, tree.shared})

  return forget


async def plan_character(
  context: context_lib.Context, owner: str, character: str
) -> Forget:
  """Returns a function that forgets the prefixes of an owner's character."""

  def read(store: conversing.Store):
    if store.character(owner, character).owner != owner:
      return set()
    found, before = set(), None
    while versions := store.versions(owner, character, before=before):
      found |= {
        sharing.Tree(version.digest, character, owner) for version in versions
      }
      before = versions[-1].number
    return found

  trees = await context.store.run(read)

  async def forget() -> None:
    salts = tuple(tree.salt for tree in trees)
    await _forget(context, forgetting.Forget(salts=salts))
    await _drop_unread(context, {tree.shared for tree in trees})

  return forget


async def plan_change(
  context: context_lib.Context, character: characters.Character
) -> Forget:
  """Returns a function that drops what a change takes from everybody.

  Call it once the store has published another version of the character, made
  another one live, or hidden it.

  Args:
    character: as it is before the change.
  """
  if not character.is_public:
    return _forget_nothing
  version = await context.store.version(character.id, character.live)
  tree = sharing.Tree(version.digest, character.id)
  return lambda: _drop_unread(context, {tree})


async def withdraw_blocked(
  context: context_lib.Context, version: characters.Version
) -> None:
  """Removes the saved prefix of a public version that the gate blocks."""
  tree = sharing.Tree(version.digest, version.character)
  await _forget(context, forgetting.Forget(blocked=(tree.salt,)))


async def _forget_nothing() -> None:
  pass


async def _drop_unread(
  context: context_lib.Context, trees: Iterable[sharing.Tree]
) -> None:
  """Drops trees that nobody can read, and files that are not to be kept."""

  def find(store: conversing.Store) -> forgetting.Forget:
    unread = {x.salt for x in trees if not sharing.is_read(store, x)}
    hidden = {x.salt for x in trees if not sharing.can_begin(store, x)}
    return forgetting.Forget(
      salts=tuple(unread), withdrawn=tuple(hidden - unread)
    )

  wanted = await context.store.run(find)
  if wanted != forgetting.Forget():
    await _forget(context, wanted)


async def _forget(
  context: context_lib.Context, wanted: forgetting.Forget
) -> None:
  # An engine that has stopped has no points either.
  with contextlib.suppress(worker_lib.Stopped):
    await context.engines.forget(wanted)
  if context.points is not None:
    await context.store.run(lambda _: context.points.forget(wanted))
