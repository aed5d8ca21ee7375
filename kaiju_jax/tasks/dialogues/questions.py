"""How well a small chat model answers as characters that it has not read of.

    asked(…)     the questions: prompts as a server makes them, and what a right
                 answer holds
    scored(…)    what the replies are worth

A question for a fact of the persona is right where the reply holds the fact's
value, word for word. It is asked after the greeting, in a phrasing that the
training dialogues have or in the one that they lack, of characters whose values
they have or lack, and after a long conversation. All other replies are looked
at for their form: whether they end by themselves, and are made of words.
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

# Bytes within which a reply must end.
REPLY = 200
# No training row is drawn from it (`rows.py` adds the run's seed to its own).
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
  """A prompt, and what is looked for in its reply.

  Attributes:
    kind: 'facts' or a variant of it (see `draw_questions`), or 'small talk',
      'open'.
    tokens: int32 [L], up to where the reply begins.
    expects: what a right reply holds; '' where none is right or wrong.
    catchword: what the character likes to exclaim; '' for nothing.
    text: all that the prompt says.
  """

  kind: str
  tokens: np.ndarray
  expects: str
  catchword: str
  text: str


@dataclasses.dataclass(frozen=True)
class Score:
  """What the replies to one kind of question are worth.

  Attributes:
    asked: replies.
    ended: of these, those that end by themselves within REPLY bytes.
    clean: those without a control character or broken UTF-8.
    words: words of all replies.
    known: of these, those of the dialogues' vocabulary or of the prompt.
    facts: replies to questions that have a right answer.
    right: of these, the right ones.
    exclaimers: replies of characters with a catchword.
    exclaimed: of these, those that hold it.
  """

  asked: int = 0
  ended: int = 0
  clean: int = 0
  words: int = 0
  known: int = 0
  facts: int = 0
  right: int = 0
  exclaimers: int = 0
  exclaimed: int = 0


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
    seed: of the draw.
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
    generator: with room for the longest prompt and REPLY tokens.
    format: its tokenizer's.
    questions: what is asked.
    temperature: of sampling; 0 for the likeliest tokens.
    seed: of the first reply; each further one has the next.
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
  """Returns {kind: what its replies are worth}."""
  counts: dict[str, list[int]] = {}
  for question, result in zip(questions, results, strict=True):
    own = np.array(dataclasses.astuple(judge(question, result)))
    counts[question.kind] = counts.get(question.kind, 0) + own
  return {kind: Score(*map(int, own)) for kind, own in counts.items()}


def judge(question: Question, result: request_lib.Result) -> Score:
  """Returns what one reply is worth."""
  text = result.text
  prompt = set(vocabulary.words_of(question.text))
  words = vocabulary.words_of(text)
  known = vocabulary.list_words() | prompt
  expects = vocabulary.words_of(question.expects)
  return Score(
    asked=1,
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
  """Returns whether the wanted words stand in a row among the words."""
  size = len(wanted)
  return any(
    words[begin : begin + size] == wanted
    for begin in range(len(words) - size + 1)
  )
