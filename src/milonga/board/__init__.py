"""The board: a page on loopback that shows runs while they learn, and what the models wrote.

`catalogue`, `curves`, `browse` and `sides` only read files and give plain views; `charts` turns views into options of charts;
`pages` puts them on pages, `guard` decides who may see them, `server` serves them. Nothing here writes into a run folder.
"""
