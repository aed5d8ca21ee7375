"""The fields of requests in OpenAI's form, and the values that each may have.

An unsupported field that would change the text is an error. So is an unknown
field, which is most often a misspelt one. Fields that only label a request are
accepted and ignored. Null is as if the field were left out, everywhere; what
else asks for nothing (`"frequency_penalty": 0`) stands in `known.py`.

`top_k`, `min_p`, `repetition_penalty`, `ignore_eos`, `continue_final_message`,
`add_generation_prompt` and the `echo` of a chat are not OpenAI's; they have the
names that other servers gave them. `character`, `session`, `swipe` and `guided`
are ours.
"""

from collections.abc import Mapping
import secrets
from typing import Annotated
from typing import Any
from typing import Literal

import pydantic

from kaiju_jax.decoding.requests import alternatives
from kaiju_jax.decoding.requests import sampling as sampling_lib
from kaiju_jax.serving.http import bodies
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.routes import known
from kaiju_jax.serving.routes import parsing
from kaiju_jax.serving.routes import values
from kaiju_jax.serving.stores import feedback

# Our guesses.
CHOICES, MESSAGES = values.CHOICES, 4096
_LABELS = 64  # The most entries of `metadata`.

_Text = Annotated[str, pydantic.StringConstraints(max_length=2**20)]


_Alternatives = Annotated[int, pydantic.Field(ge=0, le=alternatives.MOST)]
_Label = Annotated[dict[str, Any], values.limit_entries(_LABELS)] | None


class ChatMessage(parsing.Fields):
  """One message of a chat.

  Clients send back the whole message that they were sent. Its reasoning is
  ignored: the prompt has what the server kept.
  """

  UNSUPPORTED = known.MESSAGE

  role: Literal['system', 'developer', 'user', 'assistant']
  content: Annotated[str | None, pydantic.PlainValidator(values.join_parts)] = (
    None
  )
  name: _Text | None = None
  refusal: _Text | None = None
  reasoning: _Text | None = None
  reasoning_content: _Text | None = None
  annotations: list | None = None
  prefix: bool | None = None  # DeepSeek's: the reply continues it. Ours does.

  @property
  def text(self) -> str:
    """The message's text; a refusal's where there is no other."""
    return (self.refusal or '') if self.content is None else self.content


# The values of sampling's fields that a guided reply, which is searched rather
# than drawn, may have.
_UNDRAWN = {
  'temperature': (0,),
  'top_p': (1,),
  'top_k': (0, -1),
  'min_p': (0,),
  'repetition_penalty': (1,),
}


class TemplateOptions(parsing.Fields):
  """The field `chat_template_kwargs`."""

  enable_thinking: bool | None = None


class StreamOptions(parsing.Fields):
  """The field `stream_options`."""

  include_usage: bool = False
  continuous_usage_stats: bool = False
  include_obfuscation: bool | None = None


class _Generation(parsing.Fields):
  """The fields that both completions endpoints have.

  Attributes:
    ignore_eos: whether the model's own end of a text ends no reply.
  """

  UNSUPPORTED = known.REQUEST

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
  ignore_eos: bool = False
  # Labels: they do not change the text.
  user: str | None = None
  metadata: _Label = None
  store: bool | None = None
  service_tier: str | None = None
  safety_identifier: str | None = None
  parallel_tool_calls: bool | None = None
  prediction: _Label = None
  prompt_cache_key: str | None = None
  prompt_cache_options: _Label = None
  prompt_cache_retention: str | None = None

  @pydantic.model_validator(mode='after')
  def _check_stream(self):
    if self.includes_usage and not self.stream:
      raise parsing.fault('stream_options', 'needs stream, which is not true')
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

  @property
  def counts_on(self) -> bool:
    """Whether each of the stream's events has the usage so far."""
    return self.includes_usage and self.stream_options.continuous_usage_stats

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
      none. If the last one is the assistant's, the reply continues it, unless
      one of the next two fields says otherwise.
    continue_final_message: whether the reply continues the last message, which
      is the assistant's; with `session` and no message the session's last one.
    add_generation_prompt: whether the reply is a message of its own; the
      opposite of `continue_final_message`.
    echo: whether the answer begins with the text that the reply continues.
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
  continue_final_message: bool | None = None
  add_generation_prompt: bool | None = None
  echo: bool = False

  @pydantic.model_validator(mode='after')
  def _check(self):
    if self.top_logprobs and not self.logprobs:
      raise parsing.fault('top_logprobs', 'needs logprobs, which is not true')
    if self.guided:
      self._check_guided()
    self._check_continued()
    if self.session is not None:
      self._check_session()
    elif not self.messages:
      raise parsing.fault(
        'messages', 'at least one is needed without a session'
      )
    elif self.swipe:
      raise parsing.fault('swipe', 'needs a session')
    return self

  def _check_continued(self) -> None:
    """Refuses a continuation of nothing, and one that shall also be opened."""
    continued, opened = self.continue_final_message, self.add_generation_prompt
    if continued is not None and continued == opened:
      raise parsing.fault(
        'continue_final_message',
        f'{str(continued).lower()} needs add_generation_prompt='
        f'{str(not continued).lower()} or left out: a reply either continues'
        ' the last message or is a message of its own',
      )
    is_assistants = not self.messages or self.messages[-1].role == 'assistant'
    if self.continues and not is_assistants:
      raise parsing.fault(
        'add_generation_prompt'
        if continued is None
        else 'continue_final_message',
        "the last message is not the assistant's, and a reply continues no"
        ' other',
      )

  def _check_session(self) -> None:
    """Refuses messages that a session does not take."""
    if self.character is not None:
      raise parsing.fault('character', 'the session has its own')
    roles = [message.role for message in self.messages]
    begun = roles[-1:] == ['assistant']
    if begun:
      roles.pop()
    is_known = roles in ([], ['user']) and (self.continues or not begun)
    if not is_known or (roles and self.swipe):
      raise parsing.fault(
        'messages',
        'with a session one message of the user, or none to have the last one'
        ' answered, or answered again with swipe; behind it one of the'
        ' assistant, with which the reply begins',
      )
    if self.swipe and self.continues and not begun:
      raise parsing.fault(
        'swipe',
        'draws another reply, where continue_final_message continues one',
      )

  def _check_guided(self) -> None:
    """Refuses sampling settings, which a guided search would ignore."""
    if self.choices > 1:
      raise parsing.fault('guided', f'finds one reply, and n={self.choices}')
    if self.top_logprobs:
      raise parsing.fault(
        'top_logprobs',
        'a guided reply is searched, not drawn: must be 0 or left out, not'
        f' {self.top_logprobs}',
      )
    for name, idle in _UNDRAWN.items():
      value = getattr(self, name)
      if value not in (None, *idle):
        raise parsing.fault(
          name,
          f'a guided reply is searched, not drawn: must be {idle[0]} or left'
          f' out, not {value}',
        )

  @property
  def continues(self) -> bool:
    """Whether the reply continues the last message."""
    if self.continue_final_message is not None:
      return self.continue_final_message
    if self.add_generation_prompt is not None:
      return not self.add_generation_prompt
    return bool(self.messages) and self.messages[-1].role == 'assistant'

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

  VALUES = bodies.VALUES_OF_TOKENS

  prompt: Annotated[str | list, pydantic.PlainValidator(values.check_prompt)]
  max_tokens: Annotated[int, pydantic.Field(ge=0)] = 16
  echo: bool | None = None
  logprobs: _Alternatives | None = None
  best_of: int | None = None

  @pydantic.model_validator(mode='after')
  def _check(self):
    if self.best_of not in (None, self.choices):
      raise parsing.fault(
        'best_of', f'must equal n={self.choices}, not {self.best_of}'
      )
    if self.max_tokens == 0 and not self.echo:
      raise parsing.fault(
        'max_tokens', '0 leaves nothing to answer without echo'
      )
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


class Encoding(parsing.Fields):
  """The fields of POST /tokenize; `add_special_tokens` opens a document."""

  prompt: _Text
  add_special_tokens: bool = True
  model: str | None = None


class Decoding(parsing.Fields):
  """The fields of POST /detokenize."""

  VALUES = bodies.VALUES_OF_TOKENS

  tokens: Annotated[list[int], pydantic.FailFast(), values.limit_entries(2**17)]
  model: str | None = None


class NewSession(parsing.Fields):
  """The fields of POST /v1/sessions; `greeting` is an index, 0 the first."""

  character: str
  greeting: Annotated[int, pydantic.Field(ge=0)] = 0
  title: Annotated[str, pydantic.StringConstraints(max_length=200)] = ''


class NewMessage(parsing.Fields):
  """The fields of POST /v1/sessions/{id}/messages; no parent at the top."""

  parent: int | None
  role: Literal['user', 'assistant']
  text: _Text


class Head(parsing.Fields):
  """The fields of PUT /v1/sessions/{id}/head: the id of the new head."""

  message: int


class Rating(parsing.Fields):
  """The fields of a message's rating; None withdraws the former one."""

  rating: Literal[feedback.RATINGS] | None


class Agreement(parsing.Fields):
  """The fields of PUT /v1/feedback."""

  agrees: bool


class Rollback(parsing.Fields):
  """The fields of POST /v1/characters/{id}/rollback: a version's number."""

  version: Annotated[int, pydantic.Field(ge=1)]
