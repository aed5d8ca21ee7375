"""/v1/characters: makes, changes, shows, exports and removes characters.

Other owners see the name, creator, notes, tags and version name of a public
character. Only its author sees the texts for the model (description, scenario,
lore, …).
"""

from collections.abc import Iterable
from collections.abc import Sequence
from typing import Annotated
from typing import Any
from typing import NamedTuple

import numpy as np
import pydantic
from starlette import requests
from starlette import responses
from starlette import routing

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.cards import cards
from kaiju_jax.characters.prompts import lore
from kaiju_jax.characters.prompts import macros
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import bodies
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.routes import context as context_lib
from kaiju_jax.serving.routes import judge
from kaiju_jax.serving.routes import lookup
from kaiju_jax.serving.routes import parse
from kaiju_jax.serving.routes import prompt as prompt_lib
from kaiju_jax.serving.routes import removals
from kaiju_jax.serving.routes import stream
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import conversing

# The most entries of a page, and the characters of their texts after which it
# ends.
_PAGE, _PAGE_SIZE = 100, 2**22
_PUBLIC = ('name', 'creator', 'notes', 'tags', 'version_name')


async def list_all(request: requests.Request) -> responses.Response:
  """GET /v1/characters: lists the caller's own and all public characters."""
  context, caller = await parse.authorize(request)
  after = request.query_params.get('after', '')
  found, has_more = await lookup.find_all(context, caller, _PAGE, after)
  data = await context.store.run(
    lambda store: _list_some(
      ((one, store.version(one.id, one.live)) for one in found), caller
    )
  )
  has_more = has_more or len(data) < len(found)
  page = stream.page(data, found[: len(data)], has_more)
  return await stream.write_json(context, page)


async def create(request: requests.Request) -> responses.Response:
  """POST /v1/characters: makes a character of fields, or of a card."""
  context, caller = await parse.authorize(request)
  written, is_public = await _read_body(request, context, caller)
  return await _publish(context, caller, written, None, bool(is_public))


async def show(request: requests.Request) -> responses.Response:
  """GET /v1/characters/{id}: shows a character and its live version."""
  context, caller = await parse.authorize(request)
  character, version = await _find(context, caller, request)
  return responses.JSONResponse(_show(character, version, caller))


async def publish(request: requests.Request) -> responses.Response:
  """PUT /v1/characters/{id}: publishes a new version."""
  context, caller = await parse.authorize(request)
  character, _ = await _find(context, caller, request)
  written, is_public = await _read_body(request, context, caller)
  forget = await removals.plan_change(context, character)
  answer = await _publish(
    context,
    caller,
    written,
    character.id,
    character.is_public if is_public is None else is_public,
  )
  await forget()
  return answer


async def remove(request: requests.Request) -> responses.Response:
  """DELETE /v1/characters/{id}: removes a character of the caller's."""
  return await removals.answer(
    request, 'character', 'remove', removals.plan_character
  )


async def versions(request: requests.Request) -> responses.Response:
  """GET /v1/characters/{id}/versions: lists them to their author, last first.

  The query parameter `before`, set to a page's `before`, gives the next page.
  """
  context, caller = await parse.authorize(request)
  character, _ = await _find(context, caller, request, is_own=True)
  before = request.query_params.get('before')
  if before is not None and not (before.isascii() and before.isdecimal()):
    raise errors.invalid(f'before={before!r:.40}: must be a number.', 'before')

  def read(store: conversing.Store):
    found = store.versions(
      caller.owner, character.id, _PAGE, before and int(before[:20])
    )
    shown = _list_some(((character, one) for one in found), caller)
    return shown, len(shown) < len(found) or len(found) == _PAGE

  data, has_more = await context.store.run(read)
  page = {
    'object': 'list',
    'data': data,
    'has_more': has_more,
    'before': data[-1]['version'] if data else None,
  }
  return await stream.write_json(context, page)


async def roll_back(request: requests.Request) -> responses.Response:
  """POST /v1/characters/{id}/rollback: makes an earlier version live."""
  context, caller = await parse.authorize(request)
  body = await parse.read_fields(request, context, caller, _Rollback)
  name = request.path_params['id']
  character = await context.store.character(caller.owner, name)
  if character.owner == caller.owner:
    version = await context.store.version(name, body.version)
    await judge.check_card(context, caller, version.fields, character.is_public)
  forget = await removals.plan_change(context, character)
  # Judged as private, it must not be live where all may see it.
  version = await context.store.rollback(
    caller.owner,
    name,
    body.version,
    if_public=character.is_public,
  )
  await forget()
  character = await context.store.character(caller.owner, name)
  return responses.JSONResponse(_show(character, version, caller))


async def card(request: requests.Request) -> responses.Response:
  """GET /v1/characters/{id}/card?format=json|png: exports it to its author."""
  context, caller = await parse.authorize(request)
  _, version = await _find(context, caller, request, is_own=True)
  kind = request.query_params.get('format', 'json')
  writers = {
    'json': (cards.to_json, bodies.JSON),
    'png': (cards.to_png, bodies.PNG),
  }
  if kind not in writers:
    raise errors.invalid(f'format={kind!r:.40}: must be json or png.', 'format')
  write, media = writers[kind]
  written = await context.texts.run(
    lambda: write(version.fields), card_fields.ALL
  )
  return responses.Response(written, media_type=media)


ROUTES = [
  routing.Route('/v1/characters', list_all, methods=['GET']),
  routing.Route('/v1/characters', create, methods=['POST']),
  routing.Route('/v1/characters/{id}', show, methods=['GET']),
  routing.Route('/v1/characters/{id}', publish, methods=['PUT']),
  routing.Route('/v1/characters/{id}', remove, methods=['DELETE']),
  routing.Route('/v1/characters/{id}/versions', versions, methods=['GET']),
  routing.Route('/v1/characters/{id}/rollback', roll_back, methods=['POST']),
  routing.Route('/v1/characters/{id}/card', card, methods=['GET']),
]


async def _find(
  context: context_lib.Context,
  caller: auth.Caller,
  request: requests.Request,
  is_own: bool = False,
) -> tuple[characters.Character, characters.Version]:
  """Returns a character that the caller may see, and its live version."""
  name = request.path_params['id']
  character = await lookup.find(context, caller, name)
  if is_own and character.owner != caller.owner:
    raise errors.forbidden(f'character {name!r} is not yours.')
  version = await context.store.version(character.id, character.live)
  return character, version


class _Rollback(parse.Fields):
  """The fields of a rollback: a version's number."""

  version: Annotated[int, pydantic.Field(ge=1)]


class _Written(NamedTuple):
  """A character as a body describes it."""

  fields: card_fields.Fields
  # What was dropped of the card, a line each.
  notes: Sequence[str]
  # Its prefix, int32 [L].
  tokens: np.ndarray


async def _read_body(
  request: requests.Request, context: context_lib.Context, caller: auth.Caller
) -> tuple[_Written, bool | None]:
  """Reads a character from a body; also its field `public`, None for none."""
  kind = bodies.media_type(request, [bodies.JSON, bodies.PNG])
  most = bodies.MOST_OF_CARD if kind == bodies.PNG else bodies.MOST
  body = await parse.read_body(request, context, caller, most)

  def work():
    fields, notes, is_public = _parse(kind, body)
    tokens = _prefix(context, fields)
    return _Written(fields, notes, tokens), is_public

  return await context.texts.run(work, len(body))


def _parse(
  kind: str, body: bytes
) -> tuple[card_fields.Fields, Sequence[str], bool | None]:
  try:
    if kind == bodies.JSON and b'"fields"' in body[:4096]:
      content = bodies.parse(body)
      if set(content) <= {'fields', 'public'}:
        is_public = content.get('public')
        if not isinstance(is_public, bool | None):
          raise errors.invalid(
            f'public={is_public!r:.40}: must be true or false.', 'public'
          )
        return card_fields.parse(content.get('fields')), (), is_public
    read = cards.read(body)
  except cards.CardError as error:
    raise errors.invalid(str(error), 'card', error.fault) from error
  except (TypeError, ValueError) as error:
    raise errors.invalid(str(error), 'fields') from error
  return read.fields, read.notes, None


async def _publish(
  context, caller, written: _Written, name: str | None, is_public: bool
) -> responses.Response:
  """Judges and stores a version, and answers with it."""
  context.limits.prompt(caller.owner, len(written.tokens), caller.rate)
  await judge.check_card(context, caller, written.fields, is_public)
  version = await context.store.publish(
    caller.owner,
    written.fields,
    written.tokens,
    context.model.digest,
    character=name,
    is_public=is_public,
  )
  character = await context.store.character(caller.owner, version.character)
  body = _show(character, version, caller) | {'notes': list(written.notes)}
  return responses.JSONResponse(body, 200 if name else 201)


def _prefix(context, written: card_fields.Fields) -> np.ndarray:
  """Returns a character's prefix, int32 [L]; checks greetings and lore too."""
  judge.check_greetings(written)
  try:
    lore.check(written)
    most = min(prompt.PREFIX, context.model.length // 2)
    return prompt.prefix(written, prompt_lib.chat_format(context), most)
  except (prompt.TooLong, macros.TooLarge) as error:
    raise errors.too_long(f'fields: {error}', 'fields') from error
  except (TypeError, ValueError) as error:
    raise errors.invalid(str(error), 'fields') from error


def _show(character, version, caller: auth.Caller) -> dict[str, Any]:
  """Returns the part of a version that the caller may see, as plain data."""
  is_own = character.owner == caller.owner
  written = card_fields.dump(version.fields)
  if not (is_own or character.owner == characters.BUILT_IN):
    written = {name: written[name] for name in _PUBLIC}
  return {
    'id': character.id,
    'object': 'character',
    'name': version.fields.name,
    'version': version.number,
    'live': version.number == character.live,
    'digest': version.digest if is_own else None,
    'tokens': len(version.tokens),
    'public': character.is_public,
    'own': is_own,
    'created': int(version.created),
    'greetings': bool(version.fields.greeting)
    + len(version.fields.alternate_greetings),
    'fields': written,
  }


def _list_some(
  pairs: Iterable[tuple[characters.Character, characters.Version]],
  caller: auth.Caller,
) -> list[dict[str, Any]]:
  """Returns what the caller may see of the first of some versions."""
  data, size = [], 0
  for character, version in pairs:
    data.append(_show(character, version, caller))
    size += sum(map(len, judge.leaves(data[-1])))
    if size > _PAGE_SIZE:
      break
  return data
