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

from kaiju_jax.decoding.requests import alternatives
from kaiju_jax.decoding.requests import sampling as sampling_lib
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.routes import values
from kaiju_jax.serving.stores import feedback

# Our guesses.
CHOICES, MESSAGES = values.CHOICES, 4096
_LABELS = 64  # The most entries of `metadata`.

_T = TypeVar('_T', bound='Fields')
_Text = Annotated[str, pydantic.StringConstraints(max_length=2**20)]


_Alternatives = Annotated[int, pydantic.Field(ge=0, le=alternatives.MOST)]
_Unsupported = Annotated[Any, pydantic.AfterValidator(values.refuse_any)]


class Fields(pydantic.BaseModel):
  """The fields of a request; unknown ones are refused."""

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


class ChatMessage(Fields):
  """One message of a chat."""

  role: Literal['system', 'developer', 'user', 'assistant']
  content: Annotated[str | None, pydantic.PlainValidator(values.join_parts)] = (
    None
  )
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


class TemplateOptions(Fields):
  """The field `chat_template_kwargs`."""

  enable_thinking: bool | None = None


class StreamOptions(Fields):
  """The field `stream_options`."""

  include_usage: bool = False
  include_obfuscation: bool | None = None


class ResponseFormat(Fields):
  """The field `response_format`; only text is supported."""

  type: Literal['text']


class _Generation(Fields):
  """The fields that both completions endpoints have."""

  model: Annotated[str, pydantic.StringConstraints(max_length=512)]
  n: Annotated[int, pydantic.Field(ge=1, le=CHOICES)] | None = None
  stream: bool | None = None
  stream_options: StreamOptions | None = None
  stop: Annotated[Any, pydantic.PlainValidator(values.check_stop)] = None
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
  metadata: Annotated[dict[str, Any], values.limit_entries(_LABELS)] | None = (
    None
  )
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
    list[ChatMessage], pydantic.FailFast(), values.limit_entries(MESSAGES)
  ]
  max_tokens: Annotated[int, pydantic.Field(ge=1)] | None = None
  max_completion_tokens: Annotated[int, pydantic.Field(ge=1)] | None = None
  logprobs: bool | None = None
  top_logprobs: _Alternatives | None = None
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
  modalities: (
    Annotated[list[Literal['text']], values.limit_entries(1)] | None
  ) = None
  reasoning_effort: Literal['none'] | None = None

  @pydantic.model_validator(mode='after')
  def _check(self):
    if self.top_logprobs and not self.logprobs:
      raise ValueError('top_logprobs: needs logprobs, which is not true')
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
    if self.top_logprobs:
      raise ValueError(
        'top_logprobs: a guided reply is searched, not drawn: must be 0 or left'
        f' out, not {self.top_logprobs}'
      )
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


class Completion(_Generation):
  """The fields of /v1/completions that need a word.

  Attributes:
    prompt: a text, a list of texts, a list of tokens, or a list of those.
    echo: whether the answer begins with the prompt; with `logprobs`, also with
      the prompt's log-probabilities.
    logprobs: 0 for the log-probabilities of the tokens themselves, k for those
      of the k likeliest tokens of each position as well.
    max_tokens: 0 to draw nothing, which needs `echo`.
  """

  prompt: Annotated[str | list, pydantic.PlainValidator(values.check_prompt)]
  max_tokens: Annotated[int, pydantic.Field(ge=0)] | None = 16
  echo: bool | None = None
  logprobs: _Alternatives | None = None
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
  def scores_prompt(self) -> bool:
    """Whether the prompt's log-probabilities are wanted."""
    return bool(self.echo and self.logprobs is not None)

  @property
  def prompts(self) -> list[str] | list[list[int]]:
    """The prompts, each of them a text or a list of tokens."""
    if isinstance(self.prompt, str):
      return [self.prompt]
    if isinstance(self.prompt[0], int):
      return [self.prompt]
    return self.prompt


class Encoding(Fields):
  """The fields of POST /tokenize; `add_special_tokens` opens a document."""

  prompt: _Text
  add_special_tokens: bool = True
  model: str | None = None


class Decoding(Fields):
  """The fields of POST /detokenize."""

  tokens: Annotated[list[int], pydantic.FailFast(), values.limit_entries(2**17)]
  model: str | None = None


class NewSession(Fields):
  """The fields of POST /v1/sessions; `greeting` is an index, 0 the first."""

  character: str
  greeting: Annotated[int, pydantic.Field(ge=0)] = 0
  title: Annotated[str, pydantic.StringConstraints(max_length=200)] = ''


class NewMessage(Fields):
  """The fields of POST /v1/sessions/{id}/messages; no parent at the top."""

  parent: int | None
  role: Literal['user', 'assistant']
  text: _Text


class Head(Fields):
  """The fields of PUT /v1/sessions/{id}/head: the id of the new head."""

  message: int


class Rating(Fields):
  """The fields of a message's rating; None withdraws the former one."""

  rating: Literal[feedback.RATINGS] | None


class Agreement(Fields):
  """The fields of PUT /v1/feedback."""

  agrees: bool


class Rollback(Fields):
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
