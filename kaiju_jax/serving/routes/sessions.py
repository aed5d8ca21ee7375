"""/v1/sessions: conversations that the server keeps, as trees of messages.

A swipe adds another child to the same message. An edit adds a sibling of the
message that it replaces. The session's head is the message that ends the path
shown. No stored message is ever changed.

/v1/feedback: whether the caller's conversations may be exported. An export
(`alignment/feedback`) makes training data of replies, swipes, edits and ratings
of those alone who agree. Nobody does by default, and people under 18, or of
unknown age, cannot. A withdrawal counts from the next export on.
"""

from typing import Annotated
from typing import Any
from typing import Literal

import pydantic
from starlette import requests
from starlette import responses
from starlette import routing

from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.routes import context as context_lib
from kaiju_jax.serving.routes import fields
from kaiju_jax.serving.routes import judge
from kaiju_jax.serving.routes import lookup
from kaiju_jax.serving.routes import parse
from kaiju_jax.serving.routes import removals
from kaiju_jax.serving.routes import store as store_lib
from kaiju_jax.serving.routes import stream
from kaiju_jax.serving.stores import characters

_PAGE = 100
# The fields of sessions and of messages that their owner reads.
_SUMMARY = 'id', 'character', 'version', 'head', 'title', 'created', 'updated'
_MESSAGE = 'id', 'parent', 'role', 'text', 'finish', 'reasoning', 'created'


class _NewSession(parse.Fields):
  """The fields of POST /v1/sessions; `greeting` is an index, 0 the first."""

  character: str
  greeting: Annotated[int, pydantic.Field(ge=0)] = 0
  title: Annotated[str, pydantic.StringConstraints(max_length=200)] = ''


class _NewMessage(parse.Fields):
  """The fields of POST /v1/sessions/{id}/messages; no parent at the top."""

  parent: int | None
  role: Literal['user', 'assistant']
  text: fields.TEXT


class _NewHead(parse.Fields):
  """The fields of PUT /v1/sessions/{id}/head: the id of the new head."""

  message: int


class _Rating(parse.Fields):
  """The fields of a message's rating; None withdraws the former one."""

  rating: Literal[characters.RATINGS] | None


class _Agreement(parse.Fields):
  """The fields of PUT /v1/feedback."""

  agrees: bool


async def list_all(request: requests.Request) -> responses.Response:
  """GET /v1/sessions: lists the caller's sessions, the last used first."""
  context, caller = await parse.authorize(request)
  after = request.query_params.get('after', '')
  found = await context.store.sessions(caller.owner, _PAGE, after)
  data = [_summary(session) for session in found]
  return responses.JSONResponse(stream.page(data, found, len(found) == _PAGE))


async def create(request: requests.Request) -> responses.Response:
  """POST /v1/sessions: opens a session with a character's live version.

  The session keeps this version when another one is published.
  """
  context, caller = await parse.authorize(request)
  body = await parse.read_fields(request, context, caller, _NewSession)
  if body.title:
    await judge.check_stored(context, caller, body.title, 'title')
  character = await lookup.find(context, caller, body.character)
  version = await context.store.live(caller.owner, body.character)
  greetings = await judge.draw_greetings(
    context, caller, character, version.fields
  )
  session = await context.store.open_session(
    caller.owner,
    body.character,
    body.greeting,
    lambda _: greetings,
    version,
  )
  if body.title:
    session = await context.store.rename(caller.owner, session.id, body.title)
  return await _answer(context, session, 201)


async def show(request: requests.Request) -> responses.Response:
  """GET /v1/sessions/{id}: shows a session with all its messages."""
  context, caller = await parse.authorize(request)
  session = await _find(context, caller, request)
  return await _answer(context, session)


async def remove(request: requests.Request) -> responses.Response:
  """DELETE /v1/sessions/{id}: removes a session with all its messages."""
  return await removals.answer(
    request, 'session', 'remove_session', removals.plan_session
  )


async def edit(request: requests.Request) -> responses.Response:
  """POST /v1/sessions/{id}/messages: adds a message, and moves the head to it.

  An edit is a message with the parent of the message that it replaces.
  """
  context, caller = await parse.authorize(request)
  session = await _find(context, caller, request)
  body = await parse.read_fields(request, context, caller, _NewMessage)
  size = len(body.text)
  text = await context.texts.run(
    lambda: store_lib.strip('text', body.text), size
  )
  if body.role == 'user':
    version = await context.store.version(session.character, session.version)
    text = await context.texts.run(
      lambda: store_lib.write_message('text', version.fields, text), size
    )
  await judge.check_stored(context, caller, text, 'text')
  await context.store.append(
    caller.owner,
    session.id,
    body.parent,
    body.role,
    text,
  )
  return await _answer(context, await _find(context, caller, request), 201)


async def move_head(request: requests.Request) -> responses.Response:
  """PUT /v1/sessions/{id}/head: moves the head, so that another path shows."""
  context, caller = await parse.authorize(request)
  body = await parse.read_fields(request, context, caller, _NewHead)
  await context.store.set_head(
    caller.owner,
    request.path_params['id'],
    body.message,
  )
  return await _answer(context, await _find(context, caller, request))


async def rate(request: requests.Request) -> responses.Response:
  """POST /v1/sessions/{id}/messages/{message}/rating: rates a reply.

  There is one rating per message: another replaces it, null withdraws it.
  """
  context, caller = await parse.authorize(request)
  body = await parse.read_fields(request, context, caller, _Rating)
  session, message = request.path_params['id'], request.path_params['message']
  former = await context.store.rate(caller.owner, session, message, body.rating)
  if former != body.rating:
    context.metrics.ratings.labels(body.rating or 'withdrawn').inc()
  return responses.JSONResponse(
    {
      'object': 'rating',
      'session': session,
      'message': message,
      'rating': body.rating,
    }
  )


async def show_agreement(request: requests.Request) -> responses.Response:
  """GET /v1/feedback: shows whether the caller agrees, and may agree."""
  context, caller = await parse.authorize(request)
  word = await context.store.agreement(caller.owner)
  return _answer_agreement(caller, caller.agrees if word is None else word)


async def agree(request: requests.Request) -> responses.Response:
  """PUT /v1/feedback: records the caller's agreement, or its withdrawal.

  It holds for all conversations of the owner, past ones included.
  """
  context, caller = await parse.authorize(request)
  body = await parse.read_fields(request, context, caller, _Agreement)
  if body.agrees and caller.age != auth.ADULT:
    raise errors.forbidden(
      'agrees: people under 18, or of unknown age, cannot agree.'
    )
  await context.store.agree(caller.owner, body.agrees)
  return _answer_agreement(caller, body.agrees)


ROUTES = [
  routing.Route('/v1/sessions', list_all, methods=['GET']),
  routing.Route('/v1/sessions', create, methods=['POST']),
  routing.Route('/v1/sessions/{id}', show, methods=['GET']),
  routing.Route('/v1/sessions/{id}', remove, methods=['DELETE']),
  routing.Route('/v1/sessions/{id}/messages', edit, methods=['POST']),
  routing.Route(
    '/v1/sessions/{id}/messages/{message:int}/rating', rate, methods=['POST']
  ),
  routing.Route('/v1/sessions/{id}/head', move_head, methods=['PUT']),
  routing.Route('/v1/feedback', show_agreement, methods=['GET']),
  routing.Route('/v1/feedback', agree, methods=['PUT']),
]


async def _find(
  context: context_lib.Context, caller, request: requests.Request
) -> characters.Session:
  return await context.store.session(caller.owner, request.path_params['id'])


async def _answer(
  context: context_lib.Context, session: characters.Session, status: int = 200
) -> responses.Response:
  """Answers with a session and all its messages."""
  owner = session.owner
  messages, ratings = await context.store.run(
    lambda store: (
      store.messages(owner, session.id),
      store.ratings(owner, session.id),
    )
  )
  shown = [
    {name: getattr(one, name) for name in _MESSAGE}
    | {'rating': ratings.get(one.id)}
    for one in messages
  ]
  body = _summary(session) | {'messages': shown}
  return await stream.write_json(context, body, status)


def _summary(session: characters.Session) -> dict[str, Any]:
  shown = {name: getattr(session, name) for name in _SUMMARY}
  return {'object': 'session', **shown}


def _answer_agreement(caller: auth.Caller, agrees: bool) -> responses.Response:
  may_agree = caller.age == auth.ADULT
  return responses.JSONResponse(
    {
      'object': 'feedback',
      'agrees': agrees and may_agree,
      'may_agree': may_agree,
    }
  )
