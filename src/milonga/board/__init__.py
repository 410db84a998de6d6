"""The board: a local web page that shows runs while they train, and the completions of the models.

`catalogue`, `curves`, `browse` and `sides` read files and return plain views; `charts` turns views into chart options;
`pages` lays them out, `guard` controls access, `server` serves them. Nothing here writes into a run folder.
"""
