"""Measures everything that an accelerator can tell, in slices.

A slice, listed in `order`, is a module with two functions:

    cases(setting)            {name: (estimated seconds, what to measure)}, the
                              most worth knowing first
    measure(setting, case)    a record for JSON

`runner`, which never imports jax, starts `child` processes; a child works on
the cases of its slices and writes `book`s, a file per slice, after each case.
An exception costs a case. A crash, a hang or a kill costs the case that ran,
and the runner starts another child. The same command goes on where it was
stopped. `tables` draws what the files hold, and `proposal` compares each
platform's default implementations with the fastest.
"""
