"""/v1/feedback: whether the caller's conversations may be exported.

An export (`alignment/feedback`) makes training data of replies, swipes, edits
and ratings. It reads the conversations of those alone who agree. Nobody does by
default, and people under 18, or of unknown age, cannot. A withdrawal counts
from the next export on.
"""

from starlette import requests
from starlette import responses
from starlette import routing

from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.routes import parse


class _Agreement(parse.Fields):
  """The fields of PUT /v1/feedback."""

  agrees: bool


async def show(request: requests.Request) -> responses.Response:
  """GET /v1/feedback: shows whether the caller agrees, and may agree."""
  context, caller = await parse.authorize(request)
  word = await context.store.agreement(caller.owner)
  return _answer(caller, caller.agrees if word is None else word)


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
  return _answer(caller, body.agrees)


ROUTES = [
  routing.Route('/v1/feedback', show, methods=['GET']),
  routing.Route('/v1/feedback', agree, methods=['PUT']),
]


def _answer(caller: auth.Caller, agrees: bool) -> responses.Response:
  may_agree = caller.age == auth.ADULT
  return responses.JSONResponse(
    {
      'object': 'feedback',
      'agrees': agrees and may_agree,
      'may_agree': may_agree,
    }
  )
