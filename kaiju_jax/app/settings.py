"""The flags of `experiments.serve` and `experiments.generate`."""

import dataclasses
from typing import Annotated
from typing import Any
from typing import Literal

from absl import app

from kaiju_jax.costs import cache_plan
from kaiju_jax.runs import flags
from kaiju_jax.runs import play
from kaiju_jax.serving.http import auth

AUTO = 'auto'
Age = Literal[*auth.AGES]
_Seconds = Annotated[float, flags.Bounds(0.1)]


def _read_pace(text: str, flag: str) -> Any:
  from kaiju_jax.decoding.engine import pacing  # Imports jax: not for --help.

  return pacing.parse(text, flag)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(play.Player):
  """The settings of a server; all defaults are our guesses for one machine."""

  # A workdir, an export or a Hugging Face folder.
  model: str = ''
  # Workdir of a run with adapters of --model, served beside its codes.
  lora: str = ''
  # What the interface calls the model; by default the last part of its path.
  name: str = ''
  # Where characters, conversations and tokens lie.
  folder: str = 'runs/server'
  # 'sqlite', in --folder, or a Redis: redis://HOST:PORT/0, or
  # redis+sentinel://HOST:PORT,HOST:PORT/NAME/0.
  store: str = 'sqlite'
  # Address to listen on.
  host: str = '127.0.0.1'
  # Port to listen on; 0 for a free one.
  port: Annotated[int, flags.Bounds(0, 65_535)] = 8000
  # Of /metrics and of operators' commands (experiments.operate), on 127.0.0.1;
  # without it there are none, and /metrics is on --port.
  metrics_port: Annotated[int | None, flags.Bounds(0, 65_535)] = None
  # Replies drawn at once.
  rows: flags.Positive = 8
  # Texts that stay in the cache beside those being continued, as far as
  # --cache has room.
  kept: flags.NonNegative = 32
  # Prompt tokens of a round.
  chunk: flags.Positive = 256
  # Start a round before the tokens of the one before it are read: an
  # accelerator then does not wait for the host.
  ahead: bool = False
  # LOW:HIGH tokens per second, such as 8:30: a reply that is ahead of a reader
  # of HIGH lets prompts and slower replies run first, and keeps LOW; off by
  # default.
  pace: Annotated[Any, flags.Parsed(_read_pace)] = None
  # Of a reply, where the client names no limit.
  max_tokens: flags.Positive = 512
  # Requests that wait, at most.
  queue: flags.Positive = 64
  # Seconds to a first token, at most; then busy.
  wait: _Seconds = 30.0
  # Seconds until a reply that nobody reads is ended.
  lease: _Seconds = 30.0
  # Seconds that replies have to finish at the end.
  grace: Annotated[float, flags.Bounds(0.0)] = 30.0
  # Folder of a gate and its certified thresholds.
  safety: str = ''
  # File of a token-level head, or its run's workdir; by default --safety's
  # head.safetensors, if there is one.
  head: str = ''
  # Tokens of a guided reply, at most, where there is a --head.
  guided: flags.Positive = 128
  # File of a Jinja chat template, instead of the Hugging Face folder's own.
  template: str = ''
  # Whether later prompts hold what a model thought before it answered;
  # dropped, as models are trained, the last answer is run again.
  thinking: Literal['drop', 'keep'] = 'drop'
  # What of the cache is kept in --folder for the next start: nothing, the
  # prefixes of public characters, or conversations and private characters,
  # too.
  points: Literal['none', 'public', 'all'] = 'public'
  # Most bytes of --points.
  points_size: Annotated[
    int, flags.Parsed(cache_plan.parse, cache_plan.draw)
  ] = 2**30
  # Whether to watch if traffic still looks like what the limits of keys and
  # values were fitted to, for metrics, an alert and checkpoints of limits; the
  # limits that are served never move.
  drift: Literal['none', 'watch'] = 'none'
  # File of a policy: serve no model without a --promotion under it.
  policy: str = ''
  # Folder of experiments.promote's decision.
  promotion: str = ''
  # Most alternatives of each token that a request may ask for.
  top_logprobs: Annotated[int, flags.Bounds(0, 20)] = 0
  # Give --top_logprobs where replies are moderated, too: text that no head has
  # judged, in the places of tokens that it let pass.
  unjudged_top_logprobs: bool = False
  # Give each token the bits of the whole forward pass, whatever the cache held
  # and whichever replica draws it; slow.
  reference: bool = False
  # Answer by several engines: 'auto' starts a Ray on this machine, which ends
  # with the server; HOST:PORT joins one.
  ray: str = ''
  # Engines to start under --ray; 0 for those that run there already.
  replicas: flags.NonNegative = 2
  # Processes that answer HTTP on --port with --ray; several need a Redis as
  # --store and a --metrics_port, from which each takes one.
  ingresses: flags.Positive = 1
  # Answer all on this machine without a key, proxies and other accounts
  # included.
  open: bool = False
  # Print no key: on this machine, too, only tokens of --add_token count.
  require_token: bool = False
  # Of the person before this machine; unknown counts as under 18.
  age: Age = auth.UNKNOWN
  # Whether this machine's user, an adult (--age=adult), agrees that
  # conversations are exported to train a model (experiments.feedback); the
  # page withdraws it.
  feedback: bool = False
  # What is written to stderr: a line of JSON per request and per fault, faults
  # alone in words, or nothing.
  log: Literal['json', 'faults', 'none'] = 'json'

  def __post_init__(self) -> None:
    if self.promotion and not self.policy:
      raise ValueError(
        f'--promotion={self.promotion}: needs the --policy that demands it.'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Talk:
  """How text is continued, or a chat goes on."""

  # A workdir, an export or a Hugging Face folder.
  model: str
  # tokenizer.json of an exported file; bytes by default.
  tokenizer: str | None = None
  # Text to continue; can be repeated.
  prompt: flags.Repeated = ()
  # Answer lines, and remember what was said.
  interactive: bool = False
  # Take prompts and lines as messages of a chat; by default with --interactive
  # where the model's folder has a chat template.
  chat: bool | None = None
  # Tokens of a continuation, at most.
  max_tokens: flags.Positive = 200
  player: play.Player
  # Prompt tokens that are run at once.
  chunk: flags.Positive = 256
  # Of the sampling; 0 is greedy, and 1 the default.
  temperature: float | None = None
  # Likeliest tokens kept; 0 for all.
  top_k: int | None = None
  # Probability kept; 1 for all.
  top_p: float | None = None
  # Least probability, as a part of the likeliest token's.
  min_p: float | None = None
  # For tokens that the text holds; 1 for none.
  repetition_penalty: float | None = None
  # Last tokens for which it holds; -1 for all.
  repeat_last_n: int | None = None
  # Lowers the logit of a token each time that it is drawn.
  frequency_penalty: float | None = None
  # Lowers the logit of a token that was drawn.
  presence_penalty: float | None = None
  # TOKEN:BIAS, added to the token's logit; can be repeated.
  logit_bias: flags.Repeated = ()
  # Penalty of DRY for a token that repeats a sequence; 0 for none.
  dry_multiplier: float | None = None
  # By what it grows with each token of the sequence.
  dry_base: float | None = None
  # Tokens of the shortest sequence that has it.
  dry_allowed_length: int | None = None
  # Last tokens in which sequences repeat.
  dry_penalty_last_n: int | None = None
  # Text that ends a repeated sequence; can be repeated.
  dry_sequence_breakers: flags.Repeated = ()
  # Seed of the noise.
  seed: int = 0
  # Text that ends an answer.
  stop: flags.Repeated = ()

  def __post_init__(self) -> None:
    if bool(self.prompt) == self.interactive:
      raise app.UsageError(
        'exactly one of --prompt and --interactive is needed.'
      )

  def sampling(self, defaults: dict[str, Any]) -> Any:
    """Returns the sampling: a model's own, where no flag is given.

    Raises:
      ValueError: names the flag, its value and what would be right.
    """
    from kaiju_jax.decoding.requests import sampling  # Imports jax.

    names = {x.name for x in dataclasses.fields(sampling.Sampling)} - {'seed'}
    given = {name: getattr(self, name) for name in names}
    given = {name: x for name, x in given.items() if x not in (None, ())}
    if self.logit_bias:
      given['logit_bias'] = dict(map(_read_bias, self.logit_bias))
    return sampling.Sampling(**{**defaults, **given}, seed=self.seed)


def _read_bias(text: str) -> tuple[int, float]:
  token, _, bias = text.partition(':')
  try:
    return int(token), float(bias)
  except ValueError:
    raise ValueError(f'--logit_bias={text}: must be TOKEN:BIAS.') from None
