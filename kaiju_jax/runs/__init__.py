"""From a config to a run: training, resuming, exporting and generating.

For scripts and for users of the installed package alike. Importing these
modules defines no command-line flags:

    train       trains an experiment in a folder, or resumes it there
    load        the model of a training run or of an exported file
    exchange    a run as a folder of Hugging Face's format or of our own
    complete    text in, text out
    ablation/   arms × seeds, and their report
    embedders   texts as vectors, by name
    corpora/    mixes, selection, duplicates and leaks, before training

Only the commands of `experiments/` import these:

    command     reading flags, quiet libraries, Ctrl-C, the compilation cache
    devices     the flags that say what hardware a run has
    talk        generation at a terminal
"""
