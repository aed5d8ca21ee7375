"""Prepares text for training; one module per command.

read        reads the collections of documents that flags name
mix         finds the weights of whole sources; mix_report writes them
select      chooses documents within a source
duplicates  finds near-duplicates, and writes the documents without them
leaks       finds evaluation items that training text contains
"""
