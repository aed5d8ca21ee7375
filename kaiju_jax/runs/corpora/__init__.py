"""What is done with text before it is trained on; one module per command.

read        collections of documents, as the flags of the commands name them
mix         weights of whole sources; mix_report writes them up
select      documents within a source
duplicates  near-duplicates, and what is left without them
leaks       evaluation items that stand in training text
"""
