"""The fields of requests in OpenAI's form, and the values that each may have.

An unsupported field that would change the text is an error. So is an unknown
field, which is most often a misspelt one. Fields that only label a request are
accepted and ignored. Null is as if the field were left out, everywhere; what
else asks for nothing (`"length_penalty": 1`) stands in `parse.py`.

`top_k`, `min_p`, `repetition_penalty`, `repeat_last_n`, those of DRY,
`ignore_eos`, `continue_final_message`, `add_generation_prompt` and the `echo`
of a chat are not OpenAI's; they have the names that other servers gave them
(vLLM's, llama.cpp's). `character`, `session`, `swipe` and `guided` are ours.
"""

from collections.abc import Mapping
import dataclasses
import re
import secrets
from typing import Annotated
from typing import Any
from typing import Literal

import pydantic

from kaiju_jax.decoding.requests import alternatives
from kaiju_jax.decoding.requests import sampling as sampling_lib
from kaiju_jax.serving.http import bodies
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.routes import parse

# Our guesses. OpenAI allows 4 stop strings, and some clients send more.
STOPS, STOP_LENGTH, CHOICES, MESSAGES = 16, 256, 8, 4096
PARTS = 1024  # The most parts of a message.
_LABELS = 64  # The most entries of `metadata`.
TEXT = Annotated[str, pydantic.StringConstraints(max_length=2**20)]


def limit_entries(most: int) -> pydantic.BeforeValidator:
  """Returns a validator that counts entries before any is validated."""

  def check(value: Any) -> Any:
    if isinstance(value, (list, dict)) and len(value) > most:
      raise ValueError(f'has {len(value):,} entries: at most {most:,}')
    return value

  return pydantic.BeforeValidator(check)


def join_parts(value: Any) -> str | None:
  """Returns a message's text; joins a list of parts.

  Raises:
    ValueError: a part that is neither text nor a refusal.
  """
  if value is None or isinstance(value, str):
    return value
  if not isinstance(value, list):
    raise ValueError('must be a string or a list of parts')
  if len(value) > PARTS:
    raise ValueError(f'has {len(value):,} parts: at most {PARTS:,}')
  return ''.join(_read_part(*one) for one in enumerate(value))


def _read_part(number: int, part: Any) -> str:
  kind = part.get('type') if isinstance(part, dict) else None
  if kind not in ('text', 'refusal'):
    raise ValueError(
      f'part {number} has the type {kind!r:.40}, which is not supported:'
      " 'text' and 'refusal' alone are"
    )
  # Each type has its text in the field of its own name.
  text = part.get(kind)
  if not isinstance(text, str | None):
    raise ValueError(f'part {number}: {kind} must be a string')
  for name, one in part.items():
    is_known = name in ('type', kind) or name in parse.PART_LABELS
    if not is_known and not parse.asks_nothing(one):
      raise ValueError(f'part {number}: {name:.80} is not supported')
  return text or ''


def check_stop(value: Any) -> Any:
  strings = [value] if isinstance(value, str) else value
  if value in (None, ''):
    return None
  if not isinstance(strings, list):
    raise ValueError('must be a string or a list of strings')
  if len(strings) > STOPS:
    raise ValueError(f'{len(strings)} strings: at most {STOPS} are supported')
  for string in strings:
    if not isinstance(string, str) or not 1 <= len(string) <= STOP_LENGTH:
      raise ValueError(f'each must be a string of 1…{STOP_LENGTH} characters')
  return value


def check_prompt(value: Any) -> str | list[Any]:
  """Returns a text, a list of texts, a list of tokens or a list of those.

  Raises:
    ValueError: another value, an empty list or too many prompts.
  """
  if isinstance(value, str):
    return value
  if value == []:
    raise ValueError('is empty')
  entries = value if isinstance(value, list) else []
  kinds = set(map(type, entries))
  is_right = kinds in ({str}, {int})
  if kinds == {list} and len(entries) <= CHOICES:
    is_right = all(set(map(type, one)) == {int} for one in entries)
  elif kinds != {int} and len(entries) > CHOICES:
    raise ValueError(f'has {len(value):,} entries: at most {CHOICES}')
  if not is_right:
    raise ValueError(
      'must be a text, a list of texts, a list of tokens, or a list of such'
      ' lists'
    )
  return value


def read_biases(value: Any) -> Any:
  """Returns {token: bias}; JSON writes tokens as strings."""
  if not isinstance(value, dict):
    raise ValueError('must be an object of tokens and biases')
  # What is no number is refused with the rest.
  return {int(x) if x.isdecimal() else x: bias for x, bias in value.items()}


_Penalty = Annotated[float, pydantic.Field(gt=0, le=10)]
_Alternatives = Annotated[int, pydantic.Field(ge=0, le=alternatives.MOST)]
_Label = Annotated[dict[str, Any], limit_entries(_LABELS)] | None


class ChatMessage(parse.Fields):
  """One message of a chat.

  Clients send back the whole message that they were sent. Its reasoning is
  ignored: the prompt has what the server kept.
  """

  UNSUPPORTED = parse.MESSAGE

  role: Literal['system', 'developer', 'user', 'assistant']
  content: Annotated[str | None, pydantic.PlainValidator(join_parts)] = None
  name: TEXT | None = None
  refusal: TEXT | None = None
  reasoning: TEXT | None = None
  reasoning_content: TEXT | None = None
  annotations: list[Any] | None = None
  prefix: bool | None = None  # DeepSeek's: the reply continues it. Ours does.

  @property
  def text(self) -> str:
    """The message's text; a refusal's where there is no other."""
    return (self.refusal or '') if self.content is None else self.content


# The values of sampling's fields that a guided reply, which is searched rather
# than drawn, may have.
_UNDRAWN = {
  one.name: (one.default,)
  for one in dataclasses.fields(sampling_lib.Sampling)
  if one.name != 'seed'
} | {'temperature': (0,), 'top_k': (0, -1), 'logit_bias': ({},)}


class TemplateOptions(parse.Fields):
  """The field `chat_template_kwargs`."""

  enable_thinking: bool | None = None


class StreamOptions(parse.Fields):
  """The field `stream_options`."""

  include_usage: bool = False
  continuous_usage_stats: bool = False
  include_obfuscation: bool | None = None


class Generation(parse.Fields):
  """The fields that both completions endpoints have."""

  UNSUPPORTED = parse.REQUEST

  model: Annotated[str, pydantic.StringConstraints(max_length=512)]
  n: Annotated[int, pydantic.Field(ge=1, le=CHOICES)] | None = None
  stream: bool | None = None
  stream_options: StreamOptions | None = None
  stop: Annotated[Any, pydantic.PlainValidator(check_stop)] = None
  seed: int | None = None
  temperature: Annotated[float, pydantic.Field(ge=0, le=2)] | None = None
  top_p: Annotated[float, pydantic.Field(gt=0, le=1)] | None = None
  top_k: Annotated[int, pydantic.Field(ge=-1)] | None = None
  min_p: Annotated[float, pydantic.Field(ge=0, lt=1)] | None = None
  repetition_penalty: _Penalty | None = None
  # Their ranges are `Sampling`'s.
  repeat_last_n: int | None = None
  frequency_penalty: float | None = None
  presence_penalty: float | None = None
  logit_bias: Annotated[Any, pydantic.PlainValidator(read_biases)] = None
  dry_multiplier: float | None = None
  dry_base: float | None = None
  dry_allowed_length: int | None = None
  dry_penalty_last_n: int | None = None
  dry_sequence_breakers: list[str] | None = None
  # Whether the model's own end of a text ends no reply.
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
      raise parse.fault('stream_options', 'needs stream, which is not true')
    try:
      sampling_lib.Sampling(**self._sampling)
    except (TypeError, ValueError) as error:
      field, sign, message = re.split(r'\b(\W)', str(error), maxsplit=1)
      raise parse.fault(field, f'{sign}{message}'.strip('=. ')) from error
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

  @property
  def _sampling(self) -> dict[str, Any]:
    """The fields of `Sampling` that the request has."""
    given = {name: getattr(self, name) for name in _UNDRAWN}
    given = {name: x for name, x in given.items() if x is not None}
    if 'top_k' in given:
      given['top_k'] = max(given['top_k'], 0)
    return given

  def samplings(
    self, defaults: Mapping[str, Any], vocab_size: int
  ) -> list[sampling_lib.Sampling]:
    """Returns the sampling settings of each choice, with consecutive seeds."""
    seed = secrets.randbits(32) if self.seed is None else self.seed
    given = {**defaults, **self._sampling}
    found = [
      sampling_lib.Sampling(**given, seed=(seed + index) % 2**32)
      for index in range(self.choices)
    ]
    for token, _ in found[0].logit_bias:
      if token >= vocab_size:
        raise errors.invalid(
          f'logit_bias: {token}: a token is 0…{vocab_size - 1}.',
          param='logit_bias',
        )
    return found


class Chat(Generation):
  """The fields of /v1/chat/completions that are ours or need a word."""

  # The whole chat; with `session` only the user's new message, or none. If the
  # last one is the assistant's, the reply continues it, unless one of the next
  # two fields says otherwise.
  messages: Annotated[
    list[ChatMessage], pydantic.FailFast(), limit_entries(MESSAGES)
  ]
  max_tokens: Annotated[int, pydantic.Field(ge=1)] | None = None
  max_completion_tokens: Annotated[int, pydantic.Field(ge=1)] | None = None
  logprobs: bool | None = None
  top_logprobs: _Alternatives | None = None
  # The id of a character, whose prefix stands before the messages.
  character: str | None = None
  session: str | None = None  # The id of a conversation that the server keeps.
  # Whether to draw another candidate for the session's last reply.
  swipe: bool = False
  # Whether a beam search guided by the token-level head finds the reply.
  guided: bool = False
  # Whether the reply begins with its reasoning, for models that can do both; by
  # default it does not.
  chat_template_kwargs: TemplateOptions | None = None
  # Whether the reply continues the last message, which is the assistant's; with
  # `session` and no message the session's last one.
  continue_final_message: bool | None = None
  # Whether the reply is a message of its own; the opposite of
  # `continue_final_message`.
  add_generation_prompt: bool | None = None
  # Whether the answer begins with the text that the reply continues.
  echo: bool = False

  @pydantic.model_validator(mode='after')
  def _check(self):
    if self.top_logprobs and not self.logprobs:
      raise parse.fault('top_logprobs', 'needs logprobs, which is not true')
    if self.guided:
      self._check_guided()
    self._check_continued()
    if self.session is not None:
      self._check_session()
    elif not self.messages:
      raise parse.fault('messages', 'at least one is needed without a session')
    elif self.swipe:
      raise parse.fault('swipe', 'needs a session')
    return self

  def _check_continued(self) -> None:
    """Refuses a continuation of nothing, and one that shall also be opened."""
    continued, opened = self.continue_final_message, self.add_generation_prompt
    if continued is not None and continued == opened:
      raise parse.fault(
        'continue_final_message',
        f'{str(continued).lower()} needs add_generation_prompt='
        f'{str(not continued).lower()} or left out: a reply either continues'
        ' the last message or is a message of its own',
      )
    is_assistants = not self.messages or self.messages[-1].role == 'assistant'
    if self.continues and not is_assistants:
      raise parse.fault(
        'add_generation_prompt'
        if continued is None
        else 'continue_final_message',
        "the last message is not the assistant's, and a reply continues no"
        ' other',
      )

  def _check_session(self) -> None:
    """Refuses messages that a session does not take."""
    if self.character is not None:
      raise parse.fault('character', 'the session has its own')
    roles = [message.role for message in self.messages]
    begun = roles[-1:] == ['assistant']
    if begun:
      roles.pop()
    is_known = roles in ([], ['user']) and (self.continues or not begun)
    if not is_known or (roles and self.swipe):
      raise parse.fault(
        'messages',
        'with a session one message of the user, or none to have the last one'
        ' answered, or answered again with swipe; behind it one of the'
        ' assistant, with which the reply begins',
      )
    if self.swipe and self.continues and not begun:
      raise parse.fault(
        'swipe',
        'draws another reply, where continue_final_message continues one',
      )

  def _check_guided(self) -> None:
    """Refuses sampling settings, which a guided search would ignore."""
    if self.choices > 1:
      raise parse.fault('guided', f'finds one reply, and n={self.choices}')
    if self.top_logprobs:
      raise parse.fault(
        'top_logprobs',
        'a guided reply is searched, not drawn: must be 0 or left out, not'
        f' {self.top_logprobs}',
      )
    for name, idle in _UNDRAWN.items():
      value = getattr(self, name)
      if value not in (None, *idle):
        raise parse.fault(
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


class Completion(Generation):
  """The fields of /v1/completions that need a word."""

  VALUES = bodies.VALUES_OF_TOKENS

  # A text, a list of texts, a list of tokens, or a list of those.
  prompt: Annotated[str | list, pydantic.PlainValidator(check_prompt)]
  # 0 to draw nothing, which needs `echo`.
  max_tokens: Annotated[int, pydantic.Field(ge=0)] = 16
  # Whether the answer begins with the prompt; with `logprobs`, also with the
  # prompt's log-probabilities.
  echo: bool | None = None
  # 0 for the log-probabilities of the tokens themselves, k for those of the k
  # likeliest tokens of each position as well.
  logprobs: _Alternatives | None = None
  best_of: int | None = None

  @pydantic.model_validator(mode='after')
  def _check(self):
    if self.best_of not in (None, self.choices):
      raise parse.fault(
        'best_of', f'must equal n={self.choices}, not {self.best_of}'
      )
    if self.max_tokens == 0 and not self.echo:
      raise parse.fault('max_tokens', '0 leaves nothing to answer without echo')
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
