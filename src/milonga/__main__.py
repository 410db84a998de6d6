"""`python -m milonga` is the `milonga` command."""

from milonga.cli import main

main()
