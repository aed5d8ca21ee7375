"""Serves a model: a page to chat with characters, and OpenAI's HTTP interface.

    make chat                                      # trains a small model first
    python -m experiments.serve --model=runs/tiny
    python -m experiments.serve --model=exported --port=0
    python -m experiments.serve --add_token=ann --token_age=adult
    python -m experiments.serve --model=runs/tiny --ray=auto --replicas=2

One process and no other service: characters and conversations lie in a sqlite
file in --folder. It answers this machine alone, and prints the address of its
page, with a key that the page keeps, and that clients send as api_key. With
--open it asks for none, and answers all on this machine: other accounts, and
what a proxy here passes on. With --require_token tokens alone count. With
--host it answers others too, who need a token each (--add_token
prints it, once); that takes a gate and a token-level head (--safety, --head),
because a server without moderation stays on this machine.

--model takes a run's workdir, an export, or a folder of Hugging Face files,
whose weights, keys and values become int8 (--int8=none, weights or all; --kv).
Ctrl-C ends it: running replies have --grace seconds to finish.

With --ray the engines are processes of their own under Ray Serve, and
--ingresses processes answer HTTP on one port; a killed one is not missed
(docs/fleet.md).
"""

from collections.abc import Sequence
import sys

from absl import flags

from kaiju_jax.experiments import shared_flags
from kaiju_jax.runs import command

_MODEL = flags.DEFINE_string(
  'model', None, 'A workdir, an export or a Hugging Face folder.'
)
_LORA = flags.DEFINE_string(
  'lora',
  '',
  'Workdir of a run with adapters of --model, served beside its codes.',
)
_CHAT = flags.DEFINE_bool(
  'chat',
  False,
  'Train a small chat model in --model first, if there is none.',
)
_NAME = flags.DEFINE_string('name', '', 'What the interface calls the model.')
_FOLDER = flags.DEFINE_string(
  'folder', 'runs/server', 'Where characters, conversations and tokens lie.'
)
_STORE = flags.DEFINE_string(
  'store',
  'sqlite',
  "'sqlite', in --folder, or a Redis: redis://HOST:PORT/0, or"
  ' redis+sentinel://HOST:PORT,HOST:PORT/NAME/0.',
)
_HOST = flags.DEFINE_string('host', '127.0.0.1', 'Address to listen on.')
_PORT = flags.DEFINE_integer('port', 8000, '0 for a free one.', 0, 65_535)
_METRICS_PORT = flags.DEFINE_integer(
  'metrics_port',
  None,
  "Of /metrics and of operators' commands (experiments.operate), on 127.0.0.1;"
  ' without it there are none, and /metrics is on --port.',
  0,
  65_535,
)
_ROWS = flags.DEFINE_integer('rows', 8, 'Replies drawn at once.', 1)
_KEPT = flags.DEFINE_integer(
  'kept',
  32,
  'Texts that stay in the cache beside those being continued, as far as --cache'
  ' has room.',
  0,
)
_PLAYER = shared_flags.define_player()
_CHUNK = flags.DEFINE_integer('chunk', 256, 'Prompt tokens of a round.', 1)
_AHEAD = flags.DEFINE_bool(
  'ahead',
  False,
  'Start a round before the tokens of the one before it are read: an'
  ' accelerator then does not wait for the host.',
)
_PACE = flags.DEFINE_string(
  'pace',
  '',
  'LOW:HIGH tokens per second, such as 8:30: a reply that is ahead of a reader'
  ' of HIGH lets prompts and slower replies run first, and keeps LOW; off by'
  ' default.',
)
_MAX_TOKENS = flags.DEFINE_integer(
  'max_tokens', 512, 'Of a reply, where the client names no limit.', 1
)
_QUEUE = flags.DEFINE_integer('queue', 64, 'Requests that wait, at most.', 1)
_WAIT = flags.DEFINE_float(
  'wait', 30.0, 'Seconds to a first token, at most; then busy.', 0.1
)
_LEASE = flags.DEFINE_float(
  'lease', 30.0, 'Seconds until a reply that nobody reads is ended.', 0.1
)
_GRACE = flags.DEFINE_float(
  'grace', 30.0, 'Seconds that replies have to finish at the end.', 0.0
)
_SAFETY = flags.DEFINE_string(
  'safety', '', 'Folder of a gate and its certified thresholds.'
)
_HEAD = flags.DEFINE_string(
  'head',
  '',
  "File of a token-level head; by default --safety's head.safetensors, if"
  ' there is one.',
)
_GUIDED = flags.DEFINE_integer(
  'guided',
  128,
  'Tokens of a guided reply, at most, where there is a --head.',
  1,
)
_TEMPLATE = flags.DEFINE_string(
  'template',
  '',
  "File of a Jinja chat template, instead of the Hugging Face folder's own.",
)
_THINKING = flags.DEFINE_enum(
  'thinking',
  'drop',
  ['drop', 'keep'],
  'Whether later prompts hold what a model thought before it answered; dropped,'
  ' as models are trained, the last answer is run again.',
)
_POINTS = flags.DEFINE_enum(
  'points',
  'public',
  ['none', 'public', 'all'],
  'What of the cache is kept in --folder for the next start: nothing, the'
  ' prefixes of public characters, or conversations and private characters,'
  ' too.',
)
_POINTS_SIZE = flags.DEFINE_string(
  'points_size', '1GiB', 'Most bytes of --points.'
)
_DRIFT = flags.DEFINE_enum(
  'drift',
  'none',
  ['none', 'watch'],
  'Whether to watch if traffic still looks like what the limits of keys and'
  ' values were fitted to, for metrics, an alert and checkpoints of limits; the'
  ' limits that are served never move.',
)
_POLICY = flags.DEFINE_string(
  'policy',
  '',
  'File of a policy: serve no model without a --promotion under it.',
)
_PROMOTION = flags.DEFINE_string(
  'promotion', '', "Folder of experiments.promote's decision."
)
_TOP_LOGPROBS = flags.DEFINE_integer(
  'top_logprobs',
  0,
  'Most alternatives of each token that a request may ask for.',
  0,
  20,
)
_UNJUDGED = flags.DEFINE_bool(
  'unjudged_top_logprobs',
  False,
  'Give --top_logprobs where replies are moderated, too: text that no head has'
  ' judged, in the places of tokens that it let pass.',
)
_REFERENCE = flags.DEFINE_bool(
  'reference',
  False,
  'Give each token the bits of the whole forward pass, whatever the cache held'
  ' and whichever replica draws it; slow.',
)
_RAY = flags.DEFINE_string(
  'ray',
  '',
  "Answer by several engines: 'auto' starts a Ray on this machine, which ends"
  ' with the server; HOST:PORT joins one.',
)
_REPLICAS = flags.DEFINE_integer(
  'replicas',
  2,
  'Engines to start under --ray; 0 for those that run there already.',
  0,
)
_INGRESSES = flags.DEFINE_integer(
  'ingresses',
  1,
  'Processes that answer HTTP on --port with --ray; several need a Redis as'
  ' --store and a --metrics_port, from which each takes one.',
  1,
)
_OPEN = flags.DEFINE_bool(
  'open',
  False,
  'Answer all on this machine without a key, proxies and other accounts'
  ' included.',
)
_REQUIRE_TOKEN = flags.DEFINE_bool(
  'require_token',
  False,
  'Print no key: on this machine, too, only tokens of --add_token count.',
)
_AGE = flags.DEFINE_enum(
  'age',
  'unknown',
  ['adult', 'minor', 'unknown'],
  'Of the person before this machine; unknown counts as under 18.',
)
_FEEDBACK = flags.DEFINE_bool(
  'feedback',
  False,
  "Whether this machine's user, an adult (--age=adult), agrees that"
  ' conversations are exported to train a model (experiments.feedback); the'
  ' page withdraws it.',
)
_LOG = flags.DEFINE_enum(
  'log',
  'json',
  ['json', 'faults', 'none'],
  'What is written to stderr: a line of JSON per request and per fault, faults'
  ' alone in words, or nothing.',
)
_ADD_TOKEN = flags.DEFINE_string(
  'add_token', None, 'Print a new token of NAME.'
)
_TOKEN_AGE = flags.DEFINE_enum(
  'token_age', 'unknown', ['adult', 'minor', 'unknown'], "Of --add_token's."
)
_TOKEN_TIER = flags.DEFINE_integer(
  'token_tier', 0, "Priority of --add_token's; higher goes first."
)
_TOKEN_FEEDBACK = flags.DEFINE_bool(
  'token_feedback',
  False,
  "Whether --add_token's owner, an adult, agrees that conversations are"
  ' exported to train a model; the page withdraws it.',
)
_REVOKE_TOKEN = flags.DEFINE_string(
  'revoke_token', None, 'Remove a token by its id, or all of an owner.'
)
_LIST_TOKENS = flags.DEFINE_bool('list_tokens', False, 'Print all tokens.')


def main(argv: Sequence[str]) -> None:
  changes_tokens = _ADD_TOKEN.value or _REVOKE_TOKEN.value or _LIST_TOKENS.value
  command.check(argv, *(() if changes_tokens else (_MODEL,)))
  if changes_tokens:
    _change_tokens()
  else:
    _serve()


def _serve() -> None:
  _say('Starting: importing jax takes some seconds.')
  from kaiju_jax.app import replicas
  from kaiju_jax.app import serve
  from kaiju_jax.runs import memory
  from kaiju_jax.serving.http import log
  from kaiju_jax.serving.http import server as server_lib

  path = _MODEL.value
  # Not after minutes of training.
  server_lib.check_free(_HOST.value, _PORT.value)
  settings = _settings()
  if _RAY.value:
    from kaiju_jax.app import serve_ray

    fleet = serve_ray.Fleet(
      _RAY.value, _REPLICAS.value, _INGRESSES.value, _LOG.value
    )
    serve_ray.check(fleet, settings)
  if _CHAT.value:
    from kaiju_jax.app import chat

    from .configs import chat as config

    if chat.ready(config.get_config(root=path), path, _say) is None:
      return
  if settings.promotion and not settings.policy:
    raise ValueError(
      f'--promotion={settings.promotion}: needs the --policy that demands it.'
    )
  accepted = command.COMMON.read().accept_field
  arm = _PLAYER.arm
  source = replicas.Source(
    path,
    _LORA.value,
    arm.int8.value,
    arm.kv.value,
    accepted,
    arm.dtype.value,
  )
  if _RAY.value:
    serve_ray.run(source, settings, fleet, _say)
    return
  context = serve.assemble(source.load(), settings, _say)
  memory.trim()
  with log.write_to(sys.stderr, _LOG.value):
    serve.run(context, settings, _say)


def _settings():
  from kaiju_jax.app import serve
  from kaiju_jax.costs import cache_plan
  from kaiju_jax.decoding.engine import pacing

  played = _PLAYER.read()
  return serve.Settings(
    folder=_FOLDER.value,
    name=_NAME.value,
    store=_STORE.value,
    host=_HOST.value,
    port=_PORT.value,
    metrics_port=_METRICS_PORT.value,
    rows=_ROWS.value,
    length=played.length,
    chunk=_CHUNK.value,
    ahead=_AHEAD.value,
    pace=pacing.parse(_PACE.value) if _PACE.value else None,
    reference=_REFERENCE.value,
    kept=_KEPT.value,
    cache=played.cache,
    max_tokens=_MAX_TOKENS.value,
    queue=_QUEUE.value,
    wait=_WAIT.value,
    lease=_LEASE.value,
    grace=_GRACE.value,
    open=_OPEN.value,
    require_token=_REQUIRE_TOKEN.value,
    age=_AGE.value,
    feedback=_FEEDBACK.value,
    safety=_SAFETY.value,
    head=_HEAD.value,
    guided=_GUIDED.value,
    template=_TEMPLATE.value,
    thinking=_THINKING.value,
    points=_POINTS.value,
    points_size=cache_plan.parse(_POINTS_SIZE.value, '--points_size'),
    drift=_DRIFT.value,
    policy=_POLICY.value,
    promotion=_PROMOTION.value,
    top_logprobs=_TOP_LOGPROBS.value,
    unjudged_top_logprobs=_UNJUDGED.value,
  )


def _change_tokens() -> None:
  import pathlib

  from kaiju_jax.app import server_folder
  from kaiju_jax.serving.http import auth

  tokens = auth.Tokens(pathlib.Path(_FOLDER.value) / auth.FILE)
  if _ADD_TOKEN.value:
    token = tokens.add(
      _ADD_TOKEN.value,
      _TOKEN_AGE.value,
      _TOKEN_TIER.value,
      feedback=_TOKEN_FEEDBACK.value,
    )
    print(token)
    _say('The token is shown this once; send it as "Authorization: Bearer …".')
  if _REVOKE_TOKEN.value:
    gone = tokens.revoke(_REVOKE_TOKEN.value)
    for owner in {one.owner for one in gone}:
      server_folder.forget_owner(pathlib.Path(_FOLDER.value), owner)
    _say(f'{len(gone)} revoked: {", ".join(one.id for one in gone)}')
  if _LIST_TOKENS.value:
    for one in tokens.list_all():
      agrees = '  feedback' if one.feedback else ''
      print(f'{one.id}  {one.owner}  {one.age}  tier {one.tier}{agrees}')


def _say(text: str) -> None:
  print(text, flush=True)


if __name__ == '__main__':
  command.run(main, LookupError, RuntimeError, ImportError)
