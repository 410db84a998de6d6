"""Systems: one folder per published system. `index` is the catalogue of all of them; start with `tango/recipe.py`."""
