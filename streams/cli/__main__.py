"""`python -m streams.cli`: the same as the command `handoff`; child processes are started so."""

from streams.cli import main

if __name__ == "__main__":
    main()
