"""Ask the small chat model as a user does, or fine-tune it and compare.

    python -m experiments.chat_facts --model=runs/chat [--temperature=0.7]
    python -m experiments.chat_facts --model=runs/chat --fine_tune=runs/tuned

Asks a model of `experiments/configs/chat.py` about characters that it has not
read of, through the prompts that a server makes, and prints for each kind of
question how many replies end by themselves within 200 bytes, how many of their
words are words, and how many are right, with 95 % intervals. `--show=N` prints
the first N replies. With --loops any model that chats plays ten characters, and
the table says for each way to draw how many replies loop.

With --fine_tune it trains the model three times (`experiments/configs/sft.py`)
and counts the replies of each and of the model before:

    fine-tuned    dialogues, and a --share of them with requests, of which those
                  with a planted marker are refused
    no refusals   dialogues alone
    no ends       as fine-tuned, without a loss of the token that ends a reply

An arm that is trained already is only counted. Facts are compared question by
question with the model before. At most 3 points fewer are allowed: met if the
95 % interval of the difference is above that, missed if it is below, and
otherwise not settled.
"""

from collections.abc import Sequence
import dataclasses

from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  facts: settings_lib.ChatFacts
  tuning: settings_lib.FineTuning


FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  asked = settings.facts
  from kaiju_jax.experiments.studies import fine_tuning
  from kaiju_jax.experiments.studies import loops

  if asked.loops:
    loops.count(asked)
  elif settings.tuning.fine_tune:
    fine_tuning.run(settings.tuning, asked.model, asked.count or 40)
  else:
    fine_tuning.ask_facts(asked)


if __name__ == '__main__':
  command.run(main)
