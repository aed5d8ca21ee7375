"""Stage 2 of a request, prompt: makes the prompt of a chat's next reply.

Without a session the client sends the whole chat, and the server keeps only the
tokens of the replies, for the next turn's cache (`memo.py`). With a session the
messages come from the store, and the client sends only the new one. A reply may
continue one that has begun.
"""

from kaiju_jax.characters.prompts import continued
from kaiju_jax.characters.prompts import lore
from kaiju_jax.characters.prompts import prompt as prompt_lib
from kaiju_jax.data import begun as begun_lib
from kaiju_jax.decoding.requests import stop
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.routes import context as context_lib
from kaiju_jax.serving.routes import fields as fields_lib
from kaiju_jax.serving.routes import lookup
from kaiju_jax.serving.routes import parse
from kaiju_jax.serving.routes import store as store_lib
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import conversing
from kaiju_jax.serving.stores import sharing

_NOTHING = prompt_lib.Turn(characters.ASSISTANT, '')


def chat_format(
  context: context_lib.Context, thinks: bool | None = None
) -> prompt_lib.Encoded:
  """Returns the chat format of a request.

  Args:
    thinks: whether the reply begins with its reasoning; None for the model's
      default, which is without where that is possible.
  """
  chats, thinking = context.format, context.thinking
  if chats is None:
    raise errors.invalid(
      'model: it has no chat template and only continues text: use'
      ' /v1/completions, or start the server with --template.',
      param='model',
    )
  can = (thinking is not None) if thinks else not chats.opens_thought
  if thinks is not None and not can:
    raise errors.invalid(
      f'chat_template_kwargs.enable_thinking={str(thinks).lower()}: the chat'
      ' template of this model has no such switch: leave it out.',
      param='chat_template_kwargs',
    )
  return thinking if thinks else chats


async def make_turn(
  context: context_lib.Context,
  caller: auth.Caller,
  chat: fields_lib.Chat,
  character: str | None,
) -> store_lib.PendingTurn:
  """Makes the turn that a chat request asks for, and counts its tokens.

  Args:
    chat: the request's fields.
    character: the id of the character of a chat without a session; None for
      none.
  """
  parse.check_limit(context, *chat.named_limit)
  options = chat.chat_template_kwargs
  format = chat_format(context, options and options.enable_thinking)
  if chat.session is not None:
    return await _of_session(context, caller, chat, format)
  version, salt = None, ''
  if character is not None:
    await lookup.find(context, caller, character)

    def read(store: conversing.Store):
      version = store.live(caller.owner, character)
      return version, sharing.find_tree(store, caller.owner, version).salt

    version, salt = await context.store.run(read)
  messages = [prompt_lib.Turn(_role(one), one.text) for one in chat.messages]
  begun = messages.pop() if chat.continues else _NOTHING
  room = context.model.length - (chat.limit or 1)

  def recalled():
    _refuse_long(context, [*messages, begun], room)
    root = context.model.digest + (version.digest if version else '')
    turns, place = context.memo.recall(caller.owner, root, messages)
    drawn = context.memo.recall_exactly(place, begun.text)
    reply = begun._replace(tokens=drawn)
    made = _encode(context, version, turns, reply, room, format, caller.owner)
    return *made, _join(_new(turns), begun.text), place

  made, opened, judged, place = await context.texts.run(
    recalled, _size([*messages, begun])
  )
  if made.dropped:
    raise _too_long(context, room)
  context.limits.prompt(caller.owner, len(made.tokens), caller.rate)
  return store_lib.PendingTurn(
    made,
    format,
    judged,
    salt,
    place,
    begun=begun.text,
    opened=opened,
  )


async def _of_session(
  context, caller, chat: fields_lib.Chat, format: prompt_lib.Encoded
) -> store_lib.PendingTurn:
  def read(store: conversing.Store):
    session = store.session(caller.owner, chat.session)
    messages = store.messages(caller.owner, session.id)
    version = store.version(session.character, session.version)
    tree = sharing.find_tree(store, caller.owner, version)
    path = list(characters.path(messages, session.head))
    return session, path, version, tree.salt

  session, path, version, salt = await context.store.run(read)
  messages = list(chat.messages)
  begun, parent, reasoning = _NOTHING, None, ''
  if chat.continues and messages:
    text = store_lib.strip('messages', messages.pop().text)
    begun = prompt_lib.Turn(characters.ASSISTANT, text)
  elif chat.continues:
    begun, parent, reasoning = _pop_reply(path)
  said = None
  if messages:
    text = messages[0].text
    said = await context.texts.run(
      lambda: store_lib.write_message(
        'messages', version.fields, store_lib.strip('messages', text)
      ),
      len(text),
    )
    path.append(prompt_lib.Turn(characters.USER, said))
  elif chat.messages or not chat.continues:
    if chat.swipe and path and path[-1].role == characters.ASSISTANT:
      path.pop()
    if not path or path[-1].role != characters.USER:
      raise errors.invalid(
        'messages: the conversation ends with the character: say something,'
        ' or ask for another candidate of a reply with swipe, or for more of it'
        ' with continue_final_message.',
        'messages',
      )
    parent = path[-1].id
  # The room must be equal in all turns: which messages are dropped depends on
  # it.
  room = context.model.length - context.max_tokens
  made, opened = await context.texts.run(
    lambda: _encode(context, version, path, begun, room, format, session.id),
    _size([*path, begun]),
  )
  context.limits.prompt(caller.owner, len(made.tokens), caller.rate)
  return store_lib.PendingTurn(
    made,
    format,
    _join(path[-1].text if path else '', begun.text),
    salt,
    None,
    session,
    said,
    parent,
    begun.text,
    opened,
    reasoning,
  )


def _pop_reply(path: list) -> tuple[prompt_lib.Turn, int | None, str]:
  """Takes the last message, which is continued, from a conversation."""
  if not path or path[-1].role != characters.ASSISTANT:
    raise errors.invalid(
      'continue_final_message: the conversation does not end with a reply that'
      ' could go on.',
      'continue_final_message',
    )
  last = path.pop()
  text = last.text
  if last.tokens is not None:
    text = stop.settle(text)
  begun = prompt_lib.Turn(characters.ASSISTANT, text, last.tokens)
  return begun, last.parent, last.reasoning or ''


def _join(*parts: str) -> str:
  """Returns the texts that the gate reads as one."""
  return '\n'.join(part for part in parts if part)


def _new(messages) -> str:
  """Returns the text after the last reply whose tokens the server remembers."""
  said: list[str] = []
  for one in reversed(messages):
    if one.role == characters.ASSISTANT and one.tokens is not None:
      break
    said.append(one.text)
  return '\n'.join(reversed(said))


def _size(messages) -> int:
  """Returns the number of characters of messages, about their bytes."""
  return sum(len(one.text) for one in messages)


def _refuse_long(context: context_lib.Context, messages, room: int) -> None:
  """Refuses messages that have too many bytes for `room` tokens."""
  least = sum(
    prompt_lib.count_least(one, context.tokenizer) for one in messages
  )
  if least > room:
    raise _too_long(context, room)


def _too_long(context: context_lib.Context, room: int) -> errors.ApiError:
  length = context.model.length
  return errors.too_long(
    f'messages: they leave no room for max_tokens={length - room}.',
    'messages',
    length,
  )


def _encode(
  context: context_lib.Context,
  version: characters.Version | None,
  messages,
  begun: prompt_lib.Turn,
  room: int,
  format: prompt_lib.Encoded,
  seed: str,
) -> tuple[prompt_lib.Prompt, begun_lib.Begun | None]:
  """Returns a prompt and the reply's beginning; a long history takes 20 ms."""
  try:
    if version is None:
      opened_L, book = prompt_lib.open_prefix(format), None
    else:
      opened_L = prefix(context, version, format)
      book = lore.book(version.fields)
    history, opened = _cut_all(messages, format), None
    if begun.text or begun.tokens is not None:
      made, opened = continued.continuation(
        opened_L, history, begun, format, room, book, seed
      )
    else:
      made = prompt_lib.conversation(
        opened_L, history, format, room, book=book, seed=seed
      )
  except prompt_lib.TooLong as error:
    raise errors.too_long(
      f'messages: {error}', 'messages', context.model.length
    ) from error
  except (TypeError, ValueError) as error:
    raise errors.invalid(f'messages: {error}', 'messages') from error
  # Without a character the prefix is one token, too little for a point.
  return made if version else made._replace(shared=0), opened


def _cut_all(messages, format: prompt_lib.Encoded):
  """Returns messages whose tokens are those that a prompt holds."""
  if format.thought is None:
    return messages
  return [
    prompt_lib.Turn(one.role, one.text, format.cut_history(one.tokens))
    if one.tokens is not None
    else one
    for one in messages
  ]


def prefix(
  context: context_lib.Context,
  version: characters.Version,
  format: prompt_lib.Encoded,
):
  """Returns a version's prefix; encodes it anew for another format."""
  if version.tokenizer == context.model.digest and format is context.format:
    return version.tokens
  return prompt_lib.prefix(version.fields, format)


def _role(message: fields_lib.ChatMessage) -> str:
  return 'system' if message.role == 'developer' else message.role
