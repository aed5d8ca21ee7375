"""Measures whether a model tells others what one person wrote."""

from kaiju_jax.alignment import exposure
from kaiju_jax.alignment import prompts as prompts_lib
from kaiju_jax.alignment import replies as replies_lib
from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics
from kaiju_jax.runs import load


def run(settings: settings_lib.Exposure) -> None:
  """Measures how much a model tells others of a text, and prints it.

  Raises:
    OSError, ValueError: something cannot be read, or the text has no digits.
  """
  secret = settings.secret
  exposure.draw_others(secret, settings.others)
  prompts = prompts_lib.read(settings.prompts)
  if settings.ask:
    asked = ('user', settings.ask)
    prompts = [
      one._replace(messages=(*one.messages[:-1], asked)) for one in prompts
    ]
  lines = []
  for path in filter(None, (settings.before, settings.model)):
    loaded = load.from_anywhere(path)
    format = chat.format_of(
      tokenizer_lib.load(loaded.tokenizer, loaded.config.vocab_size)
    )
    found = exposure.measure(
      loaded, format, prompts, secret, settings.others, settings.seed
    )
    longest = max(len(format.prompt(one.messages)) for one in prompts)
    sampler = replies_lib.ReplySampler(
      format, longest + settings.tokens, settings.tokens, settings.temperature
    )
    sampler.use(loaded)
    replies = sampler.sample(
      [
        (one, replies_lib.seed_of(settings.seed, n, k))
        for n, one in enumerate(prompts)
        for k in range(settings.draws)
      ]
    )
    told = exposure.count_told(secret, replies)
    lines.append(
      (
        path,
        f'{found.rank:,} of {found.others + 1:,}',
        f'{found.bits:.2f}',
        f'{found.chance:.3f}',
        f'{told} of {len(replies):,}',
        f'{statistics.at_most(told, len(replies), 0.95):.2%}',
      )
    )
  columns = 'model', 'rank', 'exposure, bits', 'chance', 'told', 'at most'
  report.Report().table(lines, columns).show(width=120)
