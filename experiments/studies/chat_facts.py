"""Asks the small chat model about characters that it has not read of."""

from kaiju_jax.characters.cards import builtin
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics
from kaiju_jax.runs import play
from kaiju_jax.tasks.dialogues import questions

_ROWS = 16
_SAID = (
  'hi',
  'What is your name?',
  'where do you live?',
  'Do you have a pet?',
  'What do you love?',
  'I am sad today.',
  'My name is Lena.',
  'Tell me a joke',
  'bye',
)


def run(settings: settings_lib.ChatFacts) -> None:
  """Asks the model, and prints what it answers.

  Raises:
    OSError, ValueError: the model cannot be read, or has no chat format.
  """
  played = settings.player
  loaded = played.load(settings.model)
  tokenizer = tokenizer_lib.load(loaded.tokenizer, loaded.config.vocab_size)
  format = chat.format_of(tokenizer)
  decoder = play.decoder(
    loaded,
    tokenizer,
    rows=_ROWS,
    length=played.length,
    cache=played.cache,
  )
  generator = generator_lib.Generator(decoder, tokenizer)
  drawn = questions.draw_questions(
    format, settings.count or 24, decoder.length, settings.seed
  )
  replies = questions.replies(generator, format, drawn, settings.temperature)
  print(f'{loaded.origin}, temperature {settings.temperature:g}')
  _say(questions.score(drawn, replies))
  for one, reply in list(zip(drawn, replies))[: settings.show]:
    said = one.text.rpartition(f'user{chat.STX}')[2].partition(chat.ETX)[0]
    print(f'{one.kind:>14}  {said} → {reply.text}  ({one.expects or "—"})')
  if settings.characters:
    _talk(settings, generator, format)


def _say(scores) -> None:
  columns = (
    *('question', 'replies', 'ended', 'clean', 'words known', 'right'),
    'exclaimed',
  )
  rows = [
    (
      kind,
      one.total,
      statistics.Share(one.ended, one.total),
      statistics.Share(one.clean, one.total),
      statistics.Share(one.known, one.words),
      statistics.Share(one.right, one.facts),
      statistics.Share(one.exclaimed, one.exclaimers),
    )
    for kind, one in scores.items()
  ]
  report.Report().table(rows, columns).show(width=120)


def _talk(settings: settings_lib.ChatFacts, generator, format) -> None:
  """Prints a conversation of _SAID with each built-in character."""
  for fields in builtin.CHARACTERS:
    prefix_L = prompt.prefix(fields, format)
    turns = [prompt.Turn('assistant', prompt.greeting(fields))]
    print(f'\n{fields.name}: {turns[0].text}')
    for said in _SAID:
      turns.append(prompt.Turn('user', said))
      conversation = prompt.conversation(prefix_L, turns, format, prompt.PREFIX)
      one = questions.Question('', conversation.tokens, '', '', '')
      reply = questions.replies(generator, format, [one], settings.temperature)[
        0
      ]
      turns.append(prompt.Turn('assistant', reply.text))
      print(f'  {said}\n{fields.name}: {reply.text}')
