"""Continue text with a trained model: prompt in, text out.

    python -m experiments.generate --model=runs/tiny --prompt='def '
    python -m experiments.generate --model=model.safetensors \\
        --prompt='Once' --prompt='Twice' --temperature=0.8 --top_p=0.95
    python -m experiments.generate --model=runs/tiny --interactive

The model is a workdir's latest checkpoint, an export or a Hugging Face folder.
An exported file alone needs the --tokenizer that it was trained with, unless it
reads bytes. Several prompts go on together, each with the next seed. Text goes
to stdout; tokens/s, the time to the first token (after everything has compiled)
and the cache's bytes go to stderr.

A Hugging Face folder's own settings of sampling hold where no flag is given.
With --chat prompts are a user's messages, in the folder's chat template;
--interactive does so where there is one.

--interactive answers lines until Ctrl-D. The history stays in the cache: each
turn runs only its own tokens. Ctrl-C ends an answer.
"""

from collections.abc import Sequence

from kaiju_jax.app import settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

FLAGS = flags.flags_of(settings_lib.Talk)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  from kaiju_jax.app import generate

  generate.generate(settings)


if __name__ == '__main__':
  # Logits from which no token can be drawn are an ArithmeticError.
  command.run(main, ArithmeticError)
