"""The server's HTTP with scripted replies and failures on order.

What a real server does rarely (refuses with 429, breaks off a stream, loses its
store), this one does when told to, in the form that the page must understand.

    with fake_api.serving() as fake:
      fake.replies.append(fake_api.Reply(['One ', 'two.'], finish='length'))
      fake.refuse('/v1/chat/completions', 429, 'full', {'Retry-After': '2'})
      … fake.address …
"""

import asyncio
from collections.abc import Sequence
import contextlib
import dataclasses
import itertools
import json
import pathlib
import threading
import time

from starlette import applications
from starlette import responses
from starlette import routing
import uvicorn

from kaiju_jax.serving.http import edge

MODEL = 'tiny'
_PAGE = pathlib.Path(__file__).parents[2] / 'kaiju_jax/serving/page'
_KINDS = {'html': 'text/html', 'js': 'text/javascript', 'css': 'text/css'}


@dataclasses.dataclass
class Reply:
  """What the model says next.

  Attributes:
    pieces: the deltas.
    finish: OpenAI's finish_reason.
    error: of an event that ends the stream after the pieces; None for none.
    is_broken: whether the connection closes after the pieces.
    is_held: whether the stream waits behind its first piece until
      `Fake.release` is called.
    refusal: of the gate; nothing is stored.
    reasoning: what comes before the pieces.
  """

  pieces: Sequence[str]
  finish: str = 'stop'
  error: str | None = None
  is_broken: bool = False
  is_held: bool = False
  refusal: str | None = None
  reasoning: str | None = None


class Fake:
  """The state of the server, and what it is to do next.

  Attributes:
    address: of the page.
    replies: scripted ones, used up in turn; then short ones of its own.
    token: what every request must bear; None for an open server.
    moderated: whether it says so.
    thinks: whether the model can begin with its reasoning.
    page: entries that a listing gives at once.
    bodies: bodies of the chat requests.
    characters: by id.
    sessions: by id.
    agrees: whether the person agrees that conversations are exported.
    may_agree: whether the person may.
  """

  def __init__(self):
    self.address = ''
    self.replies: list[Reply] = []
    self.token: str | None = None
    self.moderated = False
    self.thinks = False
    self.page = 100
    self.bodies: list[dict] = []
    self.characters: dict[str, dict] = {}
    self.sessions: dict[str, dict] = {}
    self.agrees = False
    self.may_agree = False
    self._refusals: list[tuple] = []
    self._names = itertools.count(1)
    self._held = threading.Event()

  def refuse(self, path, status, message, headers=None, times=1) -> None:
    """Refuses the next requests that write to a path; '' for any path.

    What reads is never refused: the page lists sessions whenever it likes.
    """
    self._refusals += [(path, status, message, headers)] * times

  def release(self) -> None:
    """Lets the streams go on that are held."""
    self._held.set()

  def add_character(self, name: str, **fields) -> str:
    """Returns the id of a new character."""
    found = f'c{next(self._names)}'
    self.characters[found] = {
      'id': found,
      'object': 'character',
      'name': name,
      'version': 1,
      'live': True,
      'public': True,
      'own': False,
      'created': int(time.time()),
      'greetings': 1,
      'fields': {'name': name, 'tags': []} | fields,
    }
    return found

  def add_message(self, session, parent, role, text, finish=None) -> int:
    """Returns the id of a new message, to which the head moves."""
    nodes = session['messages']
    made = {
      'id': len(nodes),
      'parent': parent,
      'role': role,
      'text': text,
      'finish': finish,
      'created': time.time(),
    }
    nodes.append(made)
    session |= {'head': made['id'], 'updated': time.time()}
    return made['id']

  def open(self, character: str) -> dict:
    """Returns a new session."""
    name = f's{next(self._names)}'
    found = self.characters[character]
    written = found['fields']
    now = time.time()
    session = {
      'id': name,
      'object': 'session',
      'character': character,
      'version': 1,
      'head': None,
      'title': found['name'],
      'created': now,
      'updated': now,
      'messages': [],
    }
    self.sessions[name] = session
    texts = [written.get('greeting', 'Good evening.')]
    for text in [*texts, *written.get('alternate_greetings', ())]:
      self.add_message(session, None, 'assistant', text)
    session['head'] = 0
    return session

  def fault(self, request) -> responses.Response | None:
    """Returns what a request is refused with; None lets it pass."""
    wanted = self.token and f'Bearer {self.token}'
    is_open = not wanted or request.url.path == '/v1/server'
    if not is_open and request.headers.get('authorization') != wanted:
      return _error(401, 'a bearer token is needed.')
    for refusal in self._refusals:
      path, status, message, headers = refusal
      if path in ('', request.url.path) and request.method != 'GET':
        self._refusals.remove(refusal)
        return _error(status, message, headers)
    return None

  def listing(self, request, found) -> responses.Response:
    """Returns a page of what is found."""
    start = int(request.query_params.get('after', 0))
    end = start + self.page
    found = list(found)
    body = {'object': 'list', 'data': found[start:end], 'after': str(end)}
    return responses.JSONResponse(body | {'has_more': end < len(found)})

  async def stream(self, session: dict, body: dict):
    """Yields the events of a reply, and stores what came of it."""
    reply = self.replies.pop(0) if self.replies else Reply(_small_talk(body))
    if reply.refusal:
      yield _chunk({'content': '', 'refusal': reply.refusal})
      yield _chunk({}, 'content_filter')
      yield b'data: [DONE]\n\n'
      return
    parent = self._parent(session, body)
    said, finish = [], 'cancelled'
    try:
      yield _chunk({'role': 'assistant', 'content': ''})
      if reply.reasoning:
        thought = reply.reasoning
        names = ('reasoning', 'reasoning_content')
        yield _chunk(dict.fromkeys(names, thought))
      for piece in reply.pieces:
        said.append(piece)
        yield _chunk({'content': piece})
        while reply.is_held and not self._held.is_set():
          await asyncio.sleep(0.01)
        await asyncio.sleep(0.005)
      finish = reply.finish
    finally:
      message = None
      if said and not (reply.error or reply.is_broken):
        text = ''.join(said)
        message = self.add_message(session, parent, 'assistant', text, finish)
        session['messages'][message]['reasoning'] = reply.reasoning
    if reply.is_broken:
      raise ConnectionResetError('on order')
    if reply.error:
      yield _sent({'error': {'message': reply.error, 'code': 'internal'}})
      return
    count = 60 + sum(len(one['text']) for one in session['messages'])
    cached = {'cached_tokens': count - 7}
    usage = {'prompt_tokens': count, 'prompt_tokens_details': cached}
    about = {'session': session['id'], 'message': message, **cached}
    yield _chunk({}, reply.finish, kaiju=about)
    yield _sent({'choices': [], 'usage': usage})
    yield b'data: [DONE]\n\n'

  def _parent(self, session: dict, body: dict) -> int:
    head = session['head']
    if body['messages']:
      said = body['messages'][0]['content']
      return self.add_message(session, head, 'user', said)
    if body.get('swipe') and session['messages'][head]['role'] == 'assistant':
      return session['messages'][head]['parent']
    return head


@contextlib.contextmanager
def serving():
  """Serves a new `Fake` on a free port of loopback."""
  fake = Fake()
  config = uvicorn.Config(_app(fake), port=0, log_level='critical')
  server = uvicorn.Server(config)
  thread = threading.Thread(target=server.run, daemon=True)
  thread.start()
  while not server.started:
    time.sleep(0.01)
  port = server.servers[0].sockets[0].getsockname()[1]
  fake.address = f'http://127.0.0.1:{port}'
  try:
    yield fake
  finally:
    fake.release()
    server.should_exit = server.force_exit = True
    thread.join(10)


def _app(fake: Fake) -> applications.Starlette:
  async def server(request):
    return responses.JSONResponse(
      {
        'model': MODEL,
        'parameters': 2_134_528,
        'license': 'apache-2.0',
        'thinking': fake.thinks,
        'moderated': fake.moderated,
        'context': 4096,
        'authentication': fake.token is not None,
      }
    )

  async def characters(request):
    if request.method == 'GET':
      return fake.listing(request, fake.characters.values())
    return _error(400, 'name: must not be empty.')

  async def character(request):
    return _one(fake.characters, request)

  async def sessions(request):
    if request.method == 'GET':
      newest = sorted(fake.sessions.values(), key=lambda x: -x['updated'])
      return fake.listing(
        request,
        [{k: v for k, v in one.items() if k != 'messages'} for one in newest],
      )
    body = await request.json()
    return responses.JSONResponse(fake.open(body['character']), 201)

  async def session(request):
    return _one(fake.sessions, request)

  async def messages(request):
    found = fake.sessions[request.path_params['id']]
    body = await request.json()
    fake.add_message(found, body['parent'], body['role'], body['text'])
    return responses.JSONResponse(found, 201)

  async def head(request):
    found = fake.sessions[request.path_params['id']]
    found['head'] = (await request.json())['message']
    return responses.JSONResponse(found)

  async def feedback(request):
    if request.method == 'PUT':
      fake.agrees = (await request.json())['agrees']
    body = {'agrees': fake.agrees, 'may_agree': fake.may_agree}
    return responses.JSONResponse(body)

  async def chat(request):
    body = await request.json()
    fake.bodies.append(body)
    stream = fake.stream(fake.sessions[body['session']], body)
    return responses.StreamingResponse(stream, media_type='text/event-stream')

  def guarded(endpoint):
    async def answer(request):
      return fake.fault(request) or await endpoint(request)

    return answer

  made = {
    '/v1/server': server,
    '/v1/characters': characters,
    '/v1/characters/{id}': character,
    '/v1/sessions': sessions,
    '/v1/sessions/{id}': session,
    '/v1/sessions/{id}/messages': messages,
    '/v1/sessions/{id}/head': head,
    '/v1/feedback': feedback,
    '/v1/chat/completions': chat,
  }
  methods = ['GET', 'POST', 'PUT', 'DELETE']
  return applications.Starlette(
    routes=[
      *(
        routing.Route(path, guarded(endpoint), methods=methods)
        for path, endpoint in made.items()
      ),
      routing.Route('/{name:path}', _page),
    ]
  )


async def _page(request) -> responses.Response:
  name = request.path_params['name'] or 'index.html'
  file = _PAGE / name
  if not file.is_file():
    return _error(404, name)
  kind = _KINDS[name.rpartition('.')[2]]
  headers = {'Content-Security-Policy': edge.PAGE_POLICY}
  return responses.Response(file.read_bytes(), 200, headers, kind)


def _small_talk(body: dict) -> list[str]:
  said = body['messages'][0]['content'] if body['messages'] else 'that'
  return [f'{word} ' for word in f'You said {said!r:.60}.'.split()]


def _one(found: dict, request) -> responses.Response:
  name = request.path_params['id']
  if name not in found:
    return _error(404, f'there is no {name!r}.')
  if request.method == 'DELETE':
    del found[name]
    return responses.JSONResponse({'id': name, 'deleted': True})
  return responses.JSONResponse(found[name])


def _error(status, message, headers=None) -> responses.Response:
  return responses.JSONResponse(
    {'error': {'message': message}}, status, headers
  )


def _chunk(delta, finish=None, **extra) -> bytes:
  choice = {'index': 0, 'delta': delta, 'finish_reason': finish}
  return _sent({'choices': [choice]} | extra)


def _sent(body) -> bytes:
  return f'data: {json.dumps(body)}\n\n'.encode()
