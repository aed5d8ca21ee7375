"""Scores how well a small chat model answers as characters new to it.

    draw_questions(…)   prompts as a server makes them, with right answers
    replies(…)          a model's replies to them
    score(…)            counts of right and well-formed replies

The reply to a question for a fact is right if it holds the fact's value, word
for word. Such questions follow the greeting, in a phrasing that the training
dialogues have or in the one that they lack, to characters with values from
training or with new ones; one follows a long conversation. All other replies
are judged by form: whether they end by themselves, and consist of words.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import NamedTuple

import numpy as np

from kaiju_jax.characters.prompts import prompt as prompt_lib
from kaiju_jax.data import chat
from kaiju_jax.data.dialogues import personas
from kaiju_jax.data.dialogues import talk
from kaiju_jax.data.dialogues import vocabulary
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling as sampling_lib
from kaiju_jax.tasks.dialogues import rows

# The most tokens of a reply.
REPLY = 200
# No training row is drawn from this seed (`rows.py` lists the others).
_SEED = 2**33
# Messages that no training dialogue has.
OPEN = (
  'hello, nice to meet you',
  'where do you live and what do you do?',
  'i had a long day at work',
  'what should we do tomorrow?',
  'tell me about your family',
  'do you want to be friends?',
  'i think it will rain soon',
  'can i come with you?',
  'what did you eat today?',
  'my cat is called Mimi',
  'you look happy',
  'why do you like that so much?',
  'that is a lovely name',
  'i am looking for a book',
  'what is your favourite song?',
  'good to see you again',
)


class Question(NamedTuple):
  """A prompt, and the expected content of its reply."""

  # 'facts' or a variant of it (see `draw_questions`), or 'small talk', 'open'.
  kind: str
  tokens: np.ndarray  # int32 [L], up to where the reply begins.
  # The text that a right reply holds; '' where no reply is right or wrong.
  expects: str
  catchword: str  # The character's favourite exclamation; '' for none.
  text: str  # The whole prompt as text.


@dataclasses.dataclass(frozen=True)
class Score:
  """Counts over the replies to one kind of question."""

  total: int = 0  # Replies.
  ended: int = 0  # Those that end by themselves within REPLY tokens.
  clean: int = 0  # Those without a control character or broken UTF-8.
  words: int = 0  # Words of all replies.
  # Words that are in the dialogues' vocabulary or in the prompt.
  known: int = 0
  facts: int = 0  # Replies to questions that have a right answer.
  right: int = 0  # Of `facts`, the right ones.
  exclaimers: int = 0  # Replies of characters with a catchword.
  exclaimed: int = 0  # Of `exclaimers`, those that hold it.


def draw_questions(
  format: chat.Format, count: int, length: int, seed: int = 0
) -> list[Question]:
  """Returns questions to drawn characters, each asked for three of its facts.

  The kinds: 'facts'; 'new phrasing'; 'new values'; 'far', after a conversation
  that fills the context; 'small talk', messages of the dialogues; 'open', OPEN.

  Args:
    format: encodes messages.
    count: how many characters are asked.
    length: tokens of the longest prompt and its reply.
    seed: seed of the draw.
  """
  found = []
  for number in range(count):
    rng = np.random.default_rng((_SEED, seed, number))
    persona = personas.draw(rng)
    fresh = personas.draw(rng, fresh=True)
    kinds = rng.permutation(sorted(persona.facts))[:3]
    for kind in kinds:
      found.append(_fact(rng, format, persona, kind, 'facts'))
      found.append(_fact(rng, format, persona, kind, 'new phrasing'))
    for kind in rng.permutation(sorted(fresh.facts))[:3]:
      found.append(_fact(rng, format, fresh, kind, 'new values'))
    found.append(_fact(rng, format, persona, kinds[0], 'far', length - REPLY))
    said = talk.message(rng, persona)
    found.append(_question(rng, format, persona, 'small talk', said))
    said = OPEN[number % len(OPEN)]
    found.append(_question(rng, format, persona, 'open', said))
  return found


def _fact(
  rng: np.random.Generator,
  format: chat.Format,
  persona: personas.Persona,
  fact: str,
  kind: str,
  fill: int = 0,
) -> Question:
  unseen = kind == 'new phrasing'
  phrasings = personas.phrasings(fact, unseen)
  said = phrasings[int(rng.integers(len(phrasings)))]
  if not unseen:
    said = talk.type_like_user(rng, said)
  expects = persona.facts[fact]
  return _question(rng, format, persona, kind, said, expects, fill)


def _question(
  rng: np.random.Generator,
  format: chat.Format,
  persona: personas.Persona,
  kind: str,
  said: str,
  expects: str = '',
  fill: int = 0,
) -> Question:
  """Returns a question behind a greeting, or behind `fill` tokens of talk."""
  greeting = personas.greeting(rng, persona)
  prefix_L = prompt_lib.prefix(rows.fields_of(persona, greeting), format)
  asked_L = format.message(talk.USER, said)
  turns = [prompt_lib.Turn(talk.ASSISTANT, greeting)]
  if fill:
    room = fill - len(prefix_L) - len(asked_L) - 64
    turns = talk.path(
      rng, persona, room, lambda role, text: len(format.message(role, text))
    )
    turns = [prompt_lib.Turn(*one) for one in turns]
  turns.append(prompt_lib.Turn(talk.USER, said))
  made = prompt_lib.conversation(prefix_L, turns, format, prompt_lib.PREFIX)
  text = format.tokenizer.decode(made.tokens)
  return Question(kind, made.tokens, expects, persona.catchword, text)


def replies(
  generator: generator_lib.Generator,
  format: chat.Format,
  questions: Sequence[Question],
  temperature: float = 0.0,
  seed: int = 0,
) -> list[request_lib.Result]:
  """Returns the reply to each question.

  Args:
    generator: the model, with room for the longest prompt and REPLY tokens.
    format: the format of the generator's tokenizer.
    questions: the questions.
    temperature: temperature of sampling; 0 for the likeliest tokens.
    seed: seed of the first reply; the seeds of the others follow.
  """
  return generator.generate(
    [
      request_lib.Request(
        one.tokens,
        REPLY,
        sampling_lib.Sampling(temperature=temperature, seed=seed + number),
        stop_tokens=format.stop_tokens,
      )
      for number, one in enumerate(questions)
    ]
  )


def score(
  questions: Sequence[Question], results: Sequence[request_lib.Result]
) -> Mapping[str, Score]:
  """Returns {kind: the counts over its replies}."""
  counts: dict[str, list[int]] = {}
  for question, result in zip(questions, results, strict=True):
    own = np.array(dataclasses.astuple(judge(question, result)))
    counts[question.kind] = counts.get(question.kind, 0) + own
  return {kind: Score(*map(int, own)) for kind, own in counts.items()}


def judge(question: Question, result: request_lib.Result) -> Score:
  """Returns the counts of one reply."""
  text = result.text
  prompt = set(vocabulary.words_of(question.text))
  words = vocabulary.words_of(text)
  known = vocabulary.list_words() | prompt
  expects = vocabulary.words_of(question.expects)
  return Score(
    total=1,
    ended=int(result.reason == 'stop_token'),
    clean=int(text.isprintable() and '\ufffd' not in text and text != ''),
    words=len(words),
    known=sum(one in known for one in words),
    facts=int(bool(expects)),
    right=int(bool(expects) and _holds(words, expects)),
    exclaimers=int(bool(question.catchword)),
    exclaimed=int(bool(question.catchword) and question.catchword in text),
  )


def _holds(words: Sequence[str], wanted: Sequence[str]) -> bool:
  """Returns whether `wanted` occurs in `words` without gaps."""
  size = len(wanted)
  return any(
    words[begin : begin + size] == wanted
    for begin in range(len(words) - size + 1)
  )
