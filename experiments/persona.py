"""Score how well a model stays in character, and decide whether it passes.

    python -m experiments.persona --judge=rules --model=runs/chat
    python -m experiments.persona --judge=rules --model=runs/chat \\
      --generated=200 --out=persona

plays conversations of eight turns with characters of three tiers, and scores
speech, backstory and goal from 1 to 5. It passes if exact bounds show, per
tier, that at least half of all conversations score 4.2 or more. The exit status
is 0 if it passes, 3 if it is refused, and 4 if there are too few conversations:
200 per tier are needed, and the 24 of `experiments/golden/` decide nothing.

    --golden     your own conversations; experiments/golden/README says how
    --generated  so many generated ones per tier instead, from the dialogues of
                 the small chat model
    --endpoint   asks a server with OpenAI's chat completions instead of --model
                 (the key is read from OPENAI_API_KEY)
    --references scores the authors' own replies: what the judge gives at most
    --swapped    lets each model play another character: what the judge gives
                 to a wrong persona
    --forced     each turn follows the references instead of the own replies
    --watch      decision.json of an earlier run: refuses a drop of more than
                 --most, on 50 conversations per tier and more

--judge must be spelt out:

    rules          phrases that replies must hold: rules see words, not meaning
    http://…/v1    a server with OpenAI's chat completions, and --judge_model
    FOLDER         a model, which must not be the one that is judged

A judge that reads decides only with --calibration: decision.json of
`experiments.judge`, at most 31 days old, about the same judge.
"""

from collections.abc import Sequence

from kaiju_jax.gates import settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

FLAGS = flags.flags_of(settings_lib.Persona)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  from kaiju_jax.gates import persona

  persona.run(settings).conclude(settings.out)


if __name__ == '__main__':
  command.run(main, ImportError, RuntimeError)
