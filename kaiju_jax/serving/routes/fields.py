"""The fields of requests in OpenAI's form, and the values that each may have.

An unsupported field that would change the text is an error. So is an unknown
field, which is most often a misspelt one. Fields that only label a request are
accepted and ignored. Clients' default values, and values that change nothing
(`"frequency_penalty": 0`), are accepted.

`top_k`, `min_p` and `repetition_penalty` are not OpenAI's; they have the names
that other servers gave them. `character`, `session`, `swipe` and `guided` are
ours.

A body of a megabyte may hold half a million faults. Validation stops at the
first one, and finds a union's type before it checks the union's values, so that
no body takes long.
"""

from collections.abc import Mapping
import secrets
from typing import Annotated
from typing import Any
from typing import Literal
from typing import TypeVar

import pydantic
import pydantic_core

from kaiju_jax.decoding.requests import sampling as sampling_lib
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.stores import feedback

# Our guesses. OpenAI allows 4 stop strings, and some clients send more.
STOPS, STOP_LENGTH, CHOICES, MESSAGES = 16, 256, 8, 4096
# The most entries of `metadata`, and the most parts of a message.
_LABELS, _PARTS = 64, 1024

_T = TypeVar('_T', bound='_Fields')
_Text = Annotated[str, pydantic.StringConstraints(max_length=2**20)]


def _refuse_any(value: Any) -> None:
  """Refuses every value but None, 'none' and empty lists and objects."""
  if value not in (None, [], {}, 'none'):
    raise ValueError('is not supported')


def _limit_entries(most: int):
  """Returns a validator that counts entries before any is validated."""

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
  """Returns a message's text; joins a list of text parts.

  Raises:
    ValueError: a part of another type than text.
  """
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


class ChatMessage(_Fields):
  """One message of a chat."""

  role: Literal['system', 'developer', 'user', 'assistant']
  content: Annotated[str | None, pydantic.PlainValidator(_join_parts)] = None
  name: _Text | None = None
  refusal: None = None
  # Clients send back what they were sent. The prompt has what the server kept.
  reasoning: _Text | None = None
  reasoning_content: _Text | None = None

  @property
  def text(self) -> str:
    """The message's text; '' without content."""
    return self.content or ''


# The values of sampling's fields that a guided reply, which is searched rather
# than drawn, may have.
_UNDRAWN = {
  'temperature': (0,),
  'top_p': (1,),
  'top_k': (0, -1),
  'min_p': (0,),
  'repetition_penalty': (1,),
}


class TemplateOptions(_Fields):
  """The field `chat_template_kwargs`."""

  enable_thinking: bool | None = None


class StreamOptions(_Fields):
  """The field `stream_options`."""

  include_usage: bool = False
  include_obfuscation: bool | None = None


class ResponseFormat(_Fields):
  """The field `response_format`; only text is supported."""

  type: Literal['text']


class _Generation(_Fields):
  """The fields that both completions endpoints have."""

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
  # Labels: they do not change the text.
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
    """The number of choices requested."""
    return self.n or 1

  @property
  def includes_usage(self) -> bool:
    """Whether the stream's last event has the usage."""
    return bool(self.stream_options and self.stream_options.include_usage)

  def samplings(
    self, defaults: Mapping[str, float]
  ) -> list[sampling_lib.Sampling]:
    """Returns the sampling settings of each choice, with consecutive seeds.

    Args:
      defaults: the settings that the request does not name.

    Raises:
      errors.ApiError: 400; a setting that only `Sampling` refuses.
    """
    seed = secrets.randbits(32) if self.seed is None else self.seed
    given = {**defaults} | {
      name: value
      for name in _UNDRAWN
      if (value := getattr(self, name)) is not None
    }
    given['top_k'] = max(given.get('top_k', 0), 0)
    try:
      return [
        sampling_lib.Sampling(**given, seed=(seed + index) % 2**32)
        for index in range(self.choices)
      ]
    except (TypeError, ValueError) as error:
      raise errors.invalid(str(error)) from error


class Chat(_Generation):
  """The fields of /v1/chat/completions that are ours or need a word.

  Attributes:
    messages: the whole chat; with `session` only the user's new message, or
      none.
    character: the id of a character, whose prefix stands before the messages.
    session: the id of a conversation that the server keeps.
    swipe: whether to draw another candidate for the session's last reply.
    chat_template_kwargs: whether the reply begins with its reasoning, for
      models that can do both; by default it does not.
    guided: whether a beam search guided by the token-level head finds the
      reply.
  """

  messages: Annotated[
    list[ChatMessage], pydantic.FailFast(), _limit_entries(MESSAGES)
  ]
  max_tokens: Annotated[int, pydantic.Field(ge=1)] | None = None
  max_completion_tokens: Annotated[int, pydantic.Field(ge=1)] | None = None
  logprobs: bool | None = None
  top_logprobs: Literal[0] | None = None
  character: str | None = None
  session: str | None = None
  swipe: bool = False
  guided: bool = False
  chat_template_kwargs: TemplateOptions | None = None
  # Accepted only with values that change nothing.
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
    """Refuses sampling settings, which a guided search would ignore."""
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
    """The most tokens of a reply; None where the client named no limit."""
    return self.named_limit[1]

  @property
  def named_limit(self) -> tuple[str, int | None]:
    """The name of the field that limits a reply, and its value."""
    if self.max_completion_tokens is not None:
      return 'max_completion_tokens', self.max_completion_tokens
    return 'max_tokens', self.max_tokens


def _checked_prompt(value: Any) -> str | list:
  """Returns a text, a list of texts, a list of tokens or a list of those.

  Raises:
    ValueError: another value, an empty list or too many prompts.
  """
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
  """The fields of /v1/completions that need a word.

  Attributes:
    prompt: a text, a list of texts, a list of tokens, or a list of those.
    echo: whether the answer begins with the prompt; with `logprobs`, also with
      the prompt's log-probabilities.
    logprobs: 0 for the log-probabilities of the tokens themselves; those of
      alternatives are not supported.
    max_tokens: 0 to draw nothing, which needs `echo`.
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
    """The prompts, each of them a text or a list of tokens."""
    if isinstance(self.prompt, str):
      return [self.prompt]
    if isinstance(self.prompt[0], int):
      return [self.prompt]
    return self.prompt


class NewSession(_Fields):
  """The fields of POST /v1/sessions; `greeting` is an index, 0 the first."""

  character: str
  greeting: Annotated[int, pydantic.Field(ge=0)] = 0
  title: Annotated[str, pydantic.StringConstraints(max_length=200)] = ''


class NewMessage(_Fields):
  """The fields of POST /v1/sessions/{id}/messages; no parent at the top."""

  parent: int | None
  role: Literal['user', 'assistant']
  text: _Text


class Head(_Fields):
  """The fields of PUT /v1/sessions/{id}/head: the id of the new head."""

  message: int


class Rating(_Fields):
  """The fields of a message's rating; None withdraws the former one."""

  rating: Literal[feedback.RATINGS] | None


class Agreement(_Fields):
  """The fields of PUT /v1/feedback."""

  agrees: bool


class Rollback(_Fields):
  """The fields of POST /v1/characters/{id}/rollback: a version's number."""

  version: Annotated[int, pydantic.Field(ge=1)]


def parse(kind: type[_T], body: dict[str, Any]) -> _T:
  """Returns a body's checked fields.

  Raises:
    errors.ApiError: 400; names the first wrong field and its fault.
  """
  try:
    return kind.model_validate(body)
  except pydantic.ValidationError as error:
    raise _refusal(error) from error


def _refusal(error: pydantic.ValidationError) -> errors.ApiError:
  """Returns the first fault as an error in OpenAI's form."""
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
