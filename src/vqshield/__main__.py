"""`python -m vqshield` is the `vqshield` command."""

from vqshield.cli import main

if __name__ == "__main__":
    main()
