"""The fields of requests in OpenAI's form, and what each may hold.

A field that would change the text and is not supported is an error; so is an
unknown one, which is most often a misspelt one. Fields that only label a
request are taken and ignored. What a client sends by default, and what asks for
nothing (`"frequency_penalty": 0`), is accepted.

`top_k`, `min_p` and `repetition_penalty` stand beside OpenAI's own fields, by
the names that other servers gave them; `character`, `session`, `swipe` and
`guided` are ours.

A body of a megabyte may hold half a million faults. The first one is enough:
nothing here goes on behind it, and a union's kind is known before its values
are looked at.
"""

import secrets
from typing import Annotated
from typing import Any
from typing import Literal
from typing import TypeVar

import pydantic
import pydantic_core

from kaiju_jax.decoding.requests import sampling as sampling_lib
from kaiju_jax.serving.http import errors

# Our guesses, but for OpenAI's 4 stop strings, which front-ends exceed.
STOPS, STOP_LENGTH, CHOICES, MESSAGES = 16, 256, 8, 4096
# Entries of what labels a request, and parts of a message.
_LABELS, _PARTS = 64, 1024

_T = TypeVar('_T', bound='_Fields')
_Text = Annotated[str, pydantic.StringConstraints(max_length=2**20)]


def _refuse_any(value: Any) -> None:
  """Refuses what asks for anything: None, 'none' and nothing do not."""
  if value not in (None, [], {}, 'none'):
    raise ValueError('is not supported')


def _limit_entries(most: int):
  """Returns what refuses more entries before it looks at any."""

  def check(value: Any) -> Any:
    if isinstance(value, (list, dict)) and len(value) > most:
      raise ValueError(f'has {len(value):,} entries: at most {most:,}')
    return value

  return pydantic.BeforeValidator(check)


_Unsupported = Annotated[Any, pydantic.AfterValidator(_refuse_any)]


class _Fields(pydantic.BaseModel):
  model_config = pydantic.ConfigDict(
    strict=True, extra='forbid', allow_inf_nan=False
  )

  @pydantic.model_validator(mode='before')
  @classmethod
  def _refuse_unknown(cls, value):
    known = cls.model_fields
    for name in value if isinstance(value, dict) else ():
      if name not in known:
        raise pydantic_core.PydanticCustomError(
          'unknown', 'is not supported', {'field': name}
        )
    return value


def _join_parts(value: Any) -> str | None:
  """Returns a message's text, whose parts are joined; text alone is taken."""
  if value is None or isinstance(value, str):
    return value
  if not isinstance(value, list):
    raise ValueError('must be a string or a list of parts')
  if len(value) > _PARTS:
    raise ValueError(f'has {len(value):,} parts: at most {_PARTS:,}')
  for number, part in enumerate(value):
    kind = part.get('type') if isinstance(part, dict) else None
    if kind != 'text':
      raise ValueError(
        f'part {number} has the type {kind!r:.40}, which is not supported:'
        " 'text' alone is"
      )
    if part.keys() != {'type', 'text'} or not isinstance(part['text'], str):
      raise ValueError(f'part {number} must have a string "text", and no more')
  return ''.join(part['text'] for part in value)


def _checked_stop(value: Any) -> Any:
  strings = [value] if isinstance(value, str) else value
  if value is None:
    return value
  if not isinstance(strings, list):
    raise ValueError('must be a string or a list of strings')
  if len(strings) > STOPS:
    raise ValueError(f'{len(strings)} strings: at most {STOPS} are supported')
  for string in strings:
    if not isinstance(string, str) or not 1 <= len(string) <= STOP_LENGTH:
      raise ValueError(f'each must be a string of 1…{STOP_LENGTH} characters')
  return value


class Message(_Fields):
  """One message of a chat."""

  role: Literal['system', 'developer', 'user', 'assistant']
  content: Annotated[str | None, pydantic.PlainValidator(_join_parts)] = None
  name: _Text | None = None
  refusal: None = None

  @property
  def text(self) -> str:
    """The message's text; '' for none."""
    return self.content or ''


# The values with which a field changes nothing in a reply that is not drawn.
_UNDRAWN = {
  'temperature': (0,),
  'top_p': (1,),
  'top_k': (0, -1),
  'min_p': (0,),
  'repetition_penalty': (1,),
}


class StreamOptions(_Fields):
  """What a stream reports besides text."""

  include_usage: bool = False
  include_obfuscation: bool | None = None


class ResponseFormat(_Fields):
  """How an answer is to be formed; as text alone."""

  type: Literal['text']


class _Generation(_Fields):
  """What both endpoints take."""

  model: Annotated[str, pydantic.StringConstraints(max_length=512)]
  n: Annotated[int, pydantic.Field(ge=1, le=CHOICES)] | None = None
  stream: bool | None = None
  stream_options: StreamOptions | None = None
  stop: Annotated[Any, pydantic.PlainValidator(_checked_stop)] = None
  seed: int | None = None
  temperature: Annotated[float, pydantic.Field(ge=0, le=2)] | None = None
  top_p: Annotated[float, pydantic.Field(gt=0, le=1)] | None = None
  top_k: Annotated[int, pydantic.Field(ge=-1)] | None = None
  min_p: Annotated[float, pydantic.Field(ge=0, lt=1)] | None = None
  repetition_penalty: Annotated[float, pydantic.Field(gt=0, le=10)] | None = (
    None
  )
  frequency_penalty: Literal[0, 0.0] | None = None
  presence_penalty: Literal[0, 0.0] | None = None
  logit_bias: _Unsupported = None
  # Labels, which change no text.
  user: str | None = None
  metadata: Annotated[dict[str, Any], _limit_entries(_LABELS)] | None = None
  store: bool | None = None
  service_tier: str | None = None
  safety_identifier: str | None = None
  prompt_cache_key: str | None = None
  prompt_cache_retention: str | None = None

  @pydantic.model_validator(mode='after')
  def _check_stream(self):
    if self.stream_options is not None and not self.stream:
      raise ValueError('stream_options: needs stream, which is not true')
    return self

  @property
  def stops(self) -> tuple[str, ...]:
    """The stop strings."""
    if isinstance(self.stop, str):
      return (self.stop,)
    return tuple(self.stop or ())

  @property
  def choices(self) -> int:
    """How many answers are asked for."""
    return self.n or 1

  @property
  def includes_usage(self) -> bool:
    """Whether a stream ends with what it used."""
    return bool(self.stream_options and self.stream_options.include_usage)

  def samplings(self) -> list[sampling_lib.Sampling]:
    """Returns how each of the choices is drawn; their seeds follow each other.

    Raises:
      errors.ApiError: a setting that only `Sampling` refuses.
    """
    seed = secrets.randbits(32) if self.seed is None else self.seed
    given = {
      name: value
      for name in ('temperature', 'top_p', 'min_p', 'repetition_penalty')
      if (value := getattr(self, name)) is not None
    }
    try:
      return [
        sampling_lib.Sampling(
          **given, top_k=max(self.top_k or 0, 0), seed=(seed + index) % 2**32
        )
        for index in range(self.choices)
      ]
    except (TypeError, ValueError) as error:
      raise errors.invalid(str(error)) from error


class Chat(_Generation):
  """/v1/chat/completions.

  Attributes:
    messages: the chat; with `session` only what is new, at most one of the
      user.
    character: id of a character whose text stands before the messages.
    session: id of a conversation that the server keeps.
    swipe: whether to draw another candidate for the session's last reply.
    guided: whether the token-level head guides a search for the reply.
  """

  messages: Annotated[
    list[Message], pydantic.FailFast(), _limit_entries(MESSAGES)
  ]
  max_tokens: Annotated[int, pydantic.Field(ge=1)] | None = None
  max_completion_tokens: Annotated[int, pydantic.Field(ge=1)] | None = None
  logprobs: bool | None = None
  top_logprobs: Literal[0] | None = None
  character: str | None = None
  session: str | None = None
  swipe: bool = False
  guided: bool = False
  # What asks for nothing.
  response_format: ResponseFormat | None = None
  tools: _Unsupported = None
  tool_choice: Literal['none', 'auto'] | None = None
  parallel_tool_calls: bool | None = None
  modalities: Annotated[list[Literal['text']], _limit_entries(1)] | None = None
  reasoning_effort: Literal['none'] | None = None

  @pydantic.model_validator(mode='after')
  def _check(self):
    if self.guided:
      self._check_guided()
    if self.session is None:
      if not self.messages:
        raise ValueError('messages: at least one is needed without a session')
      if self.swipe:
        raise ValueError('swipe: needs a session')
      if self.messages[-1].role == 'assistant':
        raise ValueError(
          "messages: the last one is the assistant's, and a reply does not"
          ' continue it here: end with a message of the user'
        )
    else:
      if self.character is not None:
        raise ValueError('character: the session has its own')
      roles = [message.role for message in self.messages]
      if roles not in ([], ['user']) or (roles and self.swipe):
        raise ValueError(
          'messages: with a session one message of the user, or none to have'
          ' the last one answered, or answered again with swipe'
        )
    return self

  def _check_guided(self) -> None:
    """Refuses what changes a drawn reply, because this one is searched."""
    if self.choices > 1:
      raise ValueError(f'guided: finds one reply, and n={self.choices}')
    for name, idle in _UNDRAWN.items():
      value = getattr(self, name)
      if value not in (None, *idle):
        raise ValueError(
          f'{name}: a guided reply is searched, not drawn: must be {idle[0]}'
          f' or left out, not {value}'
        )

  @property
  def limit(self) -> int | None:
    """Tokens of a reply at most; None where the client named none."""
    return self.named_limit[1]

  @property
  def named_limit(self) -> tuple[str, int | None]:
    """The name of the field that limits a reply, and its value."""
    if self.max_completion_tokens is not None:
      return 'max_completion_tokens', self.max_completion_tokens
    return 'max_tokens', self.max_tokens


def _checked_prompt(value: Any) -> str | list:
  """Returns one text, several, tokens, or several lists of tokens."""
  if isinstance(value, str):
    return value
  if value == []:
    raise ValueError('is empty')
  kinds = set(map(type, value)) if isinstance(value, list) else set()
  is_right = kinds in ({str}, {int})
  if kinds == {list} and len(value) <= CHOICES:
    is_right = all(set(map(type, one)) == {int} for one in value)
  elif kinds != {int} and len(value) > CHOICES:
    raise ValueError(f'has {len(value):,} entries: at most {CHOICES}')
  if not is_right:
    raise ValueError(
      'must be a text, a list of texts, a list of tokens, or a list of such'
      ' lists'
    )
  return value


class Completion(_Generation):
  """/v1/completions.

  Attributes:
    prompt: one text, several, or tokens.
    echo: whether the prompt stands before the answer; with `logprobs`, its
      scores too.
    logprobs: 0 for the log-probabilities of the tokens themselves; those of
      others are not supported.
    max_tokens: 0 for none, with `echo` alone.
  """

  prompt: Annotated[str | list, pydantic.PlainValidator(_checked_prompt)]
  max_tokens: Annotated[int, pydantic.Field(ge=0)] | None = 16
  echo: bool | None = None
  logprobs: Literal[0] | None = None
  best_of: int | None = None
  suffix: Literal[''] | None = None

  @pydantic.model_validator(mode='after')
  def _check(self):
    if self.best_of not in (None, self.choices):
      raise ValueError(f'best_of={self.best_of}: must equal n={self.choices}')
    if self.max_tokens == 0 and not self.echo:
      raise ValueError('max_tokens=0: nothing to answer without echo')
    return self

  @property
  def prompts(self) -> list[str] | list[list[int]]:
    """The prompts, each of them text or tokens."""
    if isinstance(self.prompt, str):
      return [self.prompt]
    if isinstance(self.prompt[0], int):
      return [self.prompt]
    return self.prompt


class NewSession(_Fields):
  """POST /v1/sessions."""

  character: str
  greeting: Annotated[int, pydantic.Field(ge=0)] = 0
  title: Annotated[str, pydantic.StringConstraints(max_length=200)] = ''


class NewMessage(_Fields):
  """POST /v1/sessions/{id}/messages: an edit, a sibling of what it replaces."""

  parent: int | None
  role: Literal['user', 'assistant']
  text: _Text


class Head(_Fields):
  """PUT /v1/sessions/{id}/head."""

  message: int


class Rollback(_Fields):
  """POST /v1/characters/{id}/rollback."""

  version: Annotated[int, pydantic.Field(ge=1)]


def parse(kind: type[_T], body: dict[str, Any]) -> _T:
  """Returns a request's fields.

  Raises:
    errors.ApiError: 400; names the field and what is wrong with it.
  """
  try:
    return kind.model_validate(body)
  except pydantic.ValidationError as error:
    raise _refusal(error) from error


def _refusal(error: pydantic.ValidationError) -> errors.ApiError:
  """Returns the first fault in OpenAI's form."""
  first = error.errors(include_url=False)[0]
  names = [str(part) for part in first['loc']]
  if first['type'] == 'unknown':
    names.append(f'{first["ctx"]["field"]:.80}')
  field = names[0] if names else None
  message = first['msg'].removeprefix('Value error, ')
  if field is None:
    field, _, message = message.partition(': ')
  elif first['type'] == 'literal_error':
    message = f'{first["input"]!r:.80} is not supported: {message}'
  return errors.invalid(f'{".".join(names) or field}: {message}.', param=field)
