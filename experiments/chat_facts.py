"""Does the small chat model answer as the characters that it plays?

    python -m experiments.chat_facts --model=runs/chat
    python -m experiments.chat_facts --model=runs/chat --temperature=0.7

Asks a model of `experiments/configs/chat.py` about characters that it has not
read of, through the prompts that a server makes, and prints for each kind of
question how many replies end by themselves within 200 bytes, how many of their
words are words, and how many are right, with 95 % intervals. `--show=N` prints
the first N replies, `--characters` lets the built-in ones talk.
"""

from collections.abc import Sequence

from absl import flags

from kaiju_jax.experiments import shared_flags
from kaiju_jax.reporting import report
from kaiju_jax.reporting import statistics
from kaiju_jax.runs import command

_MODEL = flags.DEFINE_string(
  'model', 'runs/chat', 'A workdir, an export or a Hugging Face folder.'
)
_COUNT = flags.DEFINE_integer(
  'count', 24, 'How many characters are asked.', lower_bound=1
)
_PLAYER = shared_flags.define_player()
_TEMPERATURE = flags.DEFINE_float(
  'temperature', 0.0, 'Of the sampling; 0 is greedy.', lower_bound=0.0
)
_SEED = flags.DEFINE_integer('seed', 0, 'Seed of the questions.', lower_bound=0)
_SHOW = flags.DEFINE_integer('show', 0, 'Replies to print.', lower_bound=0)
_CHARACTERS = flags.DEFINE_bool(
  'characters', False, 'Let the built-in characters answer some messages, too.'
)
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


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  _run()


def _run() -> None:
  from kaiju_jax.data import chat
  from kaiju_jax.data import tokenizer as tokenizer_lib
  from kaiju_jax.decoding.engine import generator as generator_lib
  from kaiju_jax.runs import play
  from kaiju_jax.tasks.dialogues import questions

  played = _PLAYER.read()
  loaded = played.load(_MODEL.value)
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
    format, _COUNT.value, decoder.length, _SEED.value
  )
  replies = questions.replies(generator, format, drawn, _TEMPERATURE.value)
  print(f'{loaded.origin}, temperature {_TEMPERATURE.value:g}')
  _say(questions.score(drawn, replies))
  for one, reply in list(zip(drawn, replies))[: _SHOW.value]:
    said = one.text.rpartition(f'user{chat.STX}')[2].partition(chat.ETX)[0]
    print(f'{one.kind:>14}  {said} → {reply.text}  ({one.expects or "—"})')
  if _CHARACTERS.value:
    _talk(generator, format)


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


def _talk(generator, format) -> None:
  """Prints a conversation of _SAID with each built-in character."""
  from kaiju_jax.characters.cards import builtin
  from kaiju_jax.characters.prompts import prompt
  from kaiju_jax.tasks.dialogues import questions

  for fields in builtin.CHARACTERS:
    prefix_L = prompt.prefix(fields, format)
    turns = [prompt.Turn('assistant', prompt.greeting(fields))]
    print(f'\n{fields.name}: {turns[0].text}')
    for said in _SAID:
      turns.append(prompt.Turn('user', said))
      conversation = prompt.conversation(prefix_L, turns, format, prompt.PREFIX)
      one = questions.Question('', conversation.tokens, '', '', '')
      reply = questions.replies(generator, format, [one], _TEMPERATURE.value)[0]
      turns.append(prompt.Turn('assistant', reply.text))
      print(f'  {said}\n{fields.name}: {reply.text}')


if __name__ == '__main__':
  command.run(main)
